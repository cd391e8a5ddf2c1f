"""A broker that asks who we are and what we may: logins, refused roles, and the rights that `topics apply --acls` grants."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from compose.local.stack import Stack, layout
from services.runtime.adapters.kafka import KafkaEventLog, KafkaInputs, KafkaPublisher
from services.runtime.adapters.kafka_admin import KafkaAdmin
from services.runtime.adapters.kafka_client import KafkaSettings
from services.runtime.ports import Outgoing, PortError
from services.runtime.topic_admin import Declared, apply, check
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.kafka_cell import KafkaCell, kafka_cell
from tests.fixtures.stack import _launched

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]
USERS = ("tidemill-gateway", "tidemill-scheduler", "trainers", "stranger")
LOGIN = " ".join(f'user_{name}="secret of {name}"' for name in USERS)
# The outer door asks for a login; whoever comes through another one is nobody, who here may do all.
SECURED = f"""
sasl.enabled.mechanisms=PLAIN
listener.name.outer.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {LOGIN};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, FaultProxy]]:
    """A broker with a login at its outer door, and the way to that door."""
    folder = tmp_path_factory.mktemp("secured")
    template = folder / "broker.properties"
    text = Path(layout.TEMPLATE).read_text()
    assert "OUTER:PLAINTEXT" in text
    template.write_text(text.replace("OUTER:PLAINTEXT", "OUTER:SASL_PLAINTEXT") + SECURED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "TEMPLATE", template)
        with _launched(folder, brokers=1, etcd=0) as stack:
            (only,) = stack.layout.brokers
            with FaultProxy(upstream_port=only.outer, listen_port=only.outer_advertised) as proxy:
                yield stack, proxy


@pytest.fixture
def cell(door: tuple[Stack, FaultProxy]) -> Iterator[KafkaCell]:
    stack, _ = door
    with kafka_cell(stack.layout.bootstrap, keep=True) as made:
        yield made


@pytest.fixture
def known_as(cell: KafkaCell, door: tuple[Stack, FaultProxy]) -> Callable[..., KafkaSettings]:
    """Settings of a client that comes through the door under a name."""
    _, proxy = door

    def settings(name: str, password: str | None = None) -> KafkaSettings:
        options = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": name,
            "sasl.password": f"secret of {name}" if password is None else password,
        }
        return replace(
            cell.settings,
            bootstrap=f"127.0.0.1:{proxy.port}",
            client=name.removeprefix("tidemill-"),
            options=options,
            answer_timeout_s=5.0,
        )

    return settings


def test_a_wrong_password_is_said(cell: KafkaCell, known_as: Callable[..., KafkaSettings]) -> None:
    wrong = known_as("tidemill-gateway", "guess")
    publisher = cell.open(lambda _: KafkaPublisher(wrong))
    with pytest.raises(PortError, match="Check its user, password and certificates"):
        publisher.publish([Outgoing("requests", b"k", b"v", 0)])
    inputs = cell.open(lambda _: KafkaInputs(wrong))
    with pytest.raises(PortError, match="Check its user, password and certificates"):
        inputs.read({("requests", 0): 0}, limit=1, timeout_s=10.0)


def test_without_rights_nothing_can_be_done_and_with_them_what_the_role_does(
    cell: KafkaCell, known_as: Callable[..., KafkaSettings]
) -> None:
    gateway, scheduler = known_as("tidemill-gateway"), known_as("tidemill-scheduler")
    publisher = cell.open(lambda _: KafkaPublisher(gateway))
    with pytest.raises(PortError, match="tidemilld topics apply --acls"):
        publisher.publish([Outgoing("requests", b"k", b"v", 0)])
    with pytest.raises(PortError, match="tidemilld topics apply --acls"):
        cell.open(lambda _: KafkaEventLog(scheduler)).read(0, limit=1, timeout_s=1.0)

    said: list[str] = []
    admin = KafkaAdmin(cell.settings)
    declared = Declared(
        cell.settings.cell, replicas=1, acls=True, outside_writers={"progress": "User:trainers"}
    )
    assert not check(admin, declared, said.append)
    assert apply(admin, declared, said.append)
    assert "+ User:tidemill-gateway may write topic " + cell.name("requests") in said
    assert check(admin, declared, said.append)

    # The refusal was fatal to its producer; the same port goes on with another one.
    publisher.publish([Outgoing("requests", b"k", b"v")])
    log = cell.open(lambda _: KafkaEventLog(scheduler))
    log.append(b"entry")
    assert [r.value for r in log.read(0, limit=1, timeout_s=5.0)] == [b"entry"]
    inputs = cell.open(lambda _: KafkaInputs(scheduler, show_every_s=0))
    found = inputs.read({("requests", 0): 0}, limit=1, timeout_s=5.0)
    assert [record.value for record in found] == [b"v"]
    assert inputs.read({("requests", 0): 1}, limit=1, timeout_s=0.1) == []

    # The gateway reads the log, and cannot write it; nor may a program outside read anything.
    assert cell.open(lambda _: KafkaEventLog(gateway)).read(0, limit=1, timeout_s=5.0)
    with pytest.raises(PortError, match="tidemilld topics apply --acls"):
        cell.open(lambda _: KafkaEventLog(gateway)).append(b"forged")
    trainers = known_as("trainers")
    cell.open(lambda _: KafkaPublisher(trainers)).publish([Outgoing("progress", b"j", b"step")])
    for topic in ("requests", "verdicts"):
        with pytest.raises(PortError, match="tidemilld topics apply --acls"):
            cell.open(lambda _: KafkaPublisher(trainers)).publish([Outgoing(topic, b"j", b"", 0)])
    with pytest.raises(PortError, match="tidemilld topics apply --acls"):
        cell.open(lambda _: KafkaEventLog(known_as("stranger"))).read(0, limit=1, timeout_s=1.0)
    assert [r.value for r in cell.log().read(0, limit=9, timeout_s=5.0)] == [b"entry"]
