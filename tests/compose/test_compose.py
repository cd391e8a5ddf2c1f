"""What the container stack promises: the same broker settings, nothing open to the outside."""

import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from compose import versions
from compose.local.stack import layout

COMPOSE: Final = Path(layout.KAFKA).parent
STACK: Final[dict[str, Any]] = yaml.safe_load((COMPOSE / "compose.yml").read_text())
SERVICES: Final[dict[str, dict[str, Any]]] = STACK["services"]


def test_entrypoint_fills_in_every_name_of_the_broker_template() -> None:
    template = (COMPOSE / "kafka" / "broker.properties").read_text()
    entrypoint = (COMPOSE / "kafka" / "entrypoint.sh").read_text()
    asked = set(re.findall(r"\$\{(\w+)\}", template))
    filled = set(re.findall(r"s\|\\\$\{(\w+)\}\|", entrypoint))
    assert filled == asked != set()


ONCE: Final = {"keys", "topics"}
STORAGE: Final = [name for name in SERVICES if name.startswith(("kafka-", "etcd-"))]
OURS: Final = [name for name in SERVICES if name not in STORAGE]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_publishes_on_loopback_only_and_may_not_gain_rights(name: str) -> None:
    service = SERVICES[name]
    published = service.get("ports", [])
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert {"restart", "mem_limit", "healthcheck"} <= service.keys()


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in ONCE])
def test_a_service_keeps_its_data_in_a_volume_of_its_own(name: str) -> None:
    assert SERVICES[name]["volumes"][0] == f"{name}:/data"
    assert name in STACK["volumes"]


@pytest.mark.parametrize("name", [name for name in OURS if name not in ONCE])
def test_a_service_that_stays_starts_again_and_is_asked_whether_it_is_well(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert "/healthz" in " ".join(service["healthcheck"]["test"])


def test_an_agent_that_dies_is_started_again_and_one_that_is_asked_to_end_is_not(
    tmp_path: Path,
) -> None:
    """A container ends with what its entrypoint began: not with its agent, and with nobody left behind."""
    agent = tmp_path / "tidemilld"
    agent.write_text('#!/bin/sh\ntrap "exit 0" TERM\necho "$$ $*"\nwhile :; do sleep 0.01; done\n')
    agent.chmod(0o755)
    nodes = [SERVICES[name] for name in OURS if name.startswith("node-")]
    (words,) = {(*node["entrypoint"], *node["command"]) for node in nodes}
    begin = [word.replace("$$", "$") for word in words]
    path = f"{tmp_path}:{os.environ['PATH']}"
    with subprocess.Popen(
        begin, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        first, first_words = node.stdout.readline().split()
        os.kill(int(first), signal.SIGKILL)
        second, second_words = node.stdout.readline().split()
        assert first_words == second_words == "agent" and first != second
        node.terminate()
        assert (node.wait(timeout=30), node.stdout.read()) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(second), 0)


def test_the_cell_has_more_than_one_of_what_it_cannot_be_without() -> None:
    kinds = Counter(name.rpartition("-")[0] for name in SERVICES)
    assert kinds["gateway"] == 2
    assert kinds["scheduler"] == 3
    assert kinds["health"] == 2
    assert kinds["node"] == 4


def test_schedulers_are_named_as_their_services() -> None:
    """Whoever wants to kill the leader's container finds it by the name that the log gives."""
    for name in OURS:
        if name.startswith("scheduler-"):
            assert SERVICES[name]["command"] == ["scheduler", "--name", name]


def test_images_are_those_of_the_pinned_versions() -> None:
    asked = {
        match[1]
        for service in SERVICES.values()
        if (match := re.search(r"\$\{(\w+):", service["image"]))
    }
    assert (
        asked == {"KAFKA_VERSION", "ETCD_VERSION", "TIDEMILL_VERSION"} <= versions.pinned().keys()
    )


def test_brokers_and_etcd_members_know_all_of_their_kind() -> None:
    brokers = [name for name in SERVICES if name.startswith("kafka-")]
    members = [name for name in SERVICES if name.startswith("etcd-")]
    for number, name in enumerate(brokers, start=1):
        told = SERVICES[name]["environment"]
        assert (SERVICES[name]["hostname"], told["NODE_ID"]) == (name, str(number))
        assert told["VOTERS"] == ",".join(f"{n}@{b}:9094" for n, b in enumerate(brokers, start=1))
        assert told["OUTER_ADDRESS"] == SERVICES[name]["ports"][0].removesuffix(":9095")
    for name in members:
        told = SERVICES[name]["environment"]
        assert (SERVICES[name]["hostname"], told["ETCD_NAME"]) == (name, name)
        assert told["ETCD_INITIAL_CLUSTER"] == ",".join(f"{m}=http://{m}:2380" for m in members)
    assert (len(brokers), len(members)) == (3, 3)


def test_no_image_runs_as_root() -> None:
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    stages = re.split(r"(?m)^FROM ", dockerfile)[1:]
    final = [stage for stage in stages if "ENTRYPOINT" in stage]
    assert len(final) >= 2
    assert [stage for stage in final if "\nUSER 65532:65532\n" not in stage] == []
