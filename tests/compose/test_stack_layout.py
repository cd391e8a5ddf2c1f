"""The plan of a stack: what its configuration says, and that it survives being saved."""

import re
import string
from pathlib import Path

import pytest

from compose.local.stack import layout as plans
from compose.local.stack.layout import Broker, Etcd, Layout

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


def stack_of(brokers: int, etcd: int = 1) -> Layout:
    count = plans.ports_needed(brokers=brokers, etcd=etcd)
    return plans.lay_out(
        cluster_id=CLUSTER, brokers=brokers, etcd=etcd, ports=range(20_001, 20_001 + count)
    )


def properties(layout: Layout, broker: Broker) -> dict[str, str]:
    text = plans.broker_properties(layout, broker, data=Path("/data"))
    pairs = (line.split("=", 1) for line in text.splitlines() if line and line[0] != "#")
    return dict(pairs)


def test_a_saved_layout_reads_back_as_it_was() -> None:
    layout = stack_of(3, 3)
    assert plans.parse(plans.render(layout)) == layout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "cluster_id": "x", "brokers": [{}], "etcd": []}',
    ],
)
def test_text_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        plans.parse(text)


def test_no_two_members_share_a_port() -> None:
    members = stack_of(3, 3).members
    listens = [port for member in members for port in member.listens]
    outside = [broker.outer_advertised for broker in stack_of(3, 3).brokers]
    assert len(set(listens + outside)) == len(listens) + len(outside) == 24


def test_fixed_ports_are_the_known_ones() -> None:
    ports = plans.fixed_ports(brokers=3, etcd=3)
    layout = plans.lay_out(cluster_id=CLUSTER, brokers=3, etcd=3, ports=ports)
    assert layout.bootstrap == "127.0.0.1:9092,127.0.0.1:9192,127.0.0.1:9292"
    assert layout.endpoints == "127.0.0.1:2379,127.0.0.1:2479,127.0.0.1:2579"
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize(
    ("brokers", "replicas", "min_isr"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")]
)
def test_an_acknowledged_record_survives_what_the_size_allows(
    brokers: int, replicas: str, min_isr: str
) -> None:
    layout = stack_of(brokers)
    told = properties(layout, layout.brokers[0])
    assert told["default.replication.factor"] == replicas
    assert told["offsets.topic.replication.factor"] == replicas
    assert told["transaction.state.log.replication.factor"] == replicas
    assert told["min.insync.replicas"] == told["transaction.state.log.min.isr"] == min_isr


def test_a_broker_listens_on_loopback_only_and_advertises_what_others_may_use() -> None:
    layout = stack_of(3)
    told = properties(layout, layout.brokers[1])
    assert told["node.id"] == "2"
    assert told["controller.quorum.voters"] == (
        "1@127.0.0.1:20003,2@127.0.0.1:20008,3@127.0.0.1:20013"
    )
    assert told["listeners"] == (
        "CLIENT://127.0.0.1:20006,BROKER://127.0.0.1:20007,"
        "CONTROLLER://127.0.0.1:20008,OUTER://127.0.0.1:20009"
    )
    assert told["advertised.listeners"] == (
        "CLIENT://127.0.0.1:20006,BROKER://127.0.0.1:20007,OUTER://127.0.0.1:20010"
    )
    assert told["auto.create.topics.enable"] == "false"
    assert told["unclean.leader.election.enable"] == "false"


def test_every_name_in_the_broker_template_is_filled_in() -> None:
    layout = stack_of(1)
    text = plans.broker_properties(layout, layout.brokers[0], data=Path("/data"))
    assert string.Template(text).get_identifiers() == []


def test_etcd_members_name_each_other_and_listen_on_loopback_only() -> None:
    layout = stack_of(0, 2)
    member = layout.etcd[1]
    command = plans.etcd_command(Path("/etcd"), layout, member, data=Path("/data"))
    assert member == Etcd("etcd-2", client=20_004, peer=20_005, http=20_006)
    assert (
        "--initial-cluster=etcd-1=http://127.0.0.1:20002,etcd-2=http://127.0.0.1:20005" in command
    )
    assert set(re.findall(r"http://([\d.]+):", " ".join(command))) == {"127.0.0.1"}


def test_addresses_are_those_of_the_client_listeners() -> None:
    layout = stack_of(2, 2)
    assert layout.bootstrap == "127.0.0.1:20001,127.0.0.1:20006"
    assert layout.endpoints == "127.0.0.1:20011,127.0.0.1:20014"
