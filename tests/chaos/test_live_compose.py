"""Live chaos in containers: what it refuses, and how a log is judged that began before the scenario. It needs no Docker."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from chaos import live, live_compose, scenarios
from chaos.live_acts import ACTS
from chaos.live_scene import Scene
from chaos.live_stage import obstacle
from services.demo.containers import Container
from services.runtime.trial import TrialCell, TrialError
from simulation.faults import Fault
from simulation.scenario import Check
from simulation.world import Shape
from tidemill import Client, job_request
from tidemill.v1 import views_pb2

pytestmark = pytest.mark.timeout(200)


def test_scenarios_of_services_brokers_and_members_can_be_played_in_containers() -> None:
    live_ones = [name for name in scenarios.names() if scenarios.load(name).live]
    assert [name for name in live_ones if not obstacle(scenarios.load(name), "compose")] == [
        "kafka-away", "one-of-three", "power-cuts", "restarts", "stops",
    ]  # fmt: skip
    assert live_compose.ACTS.keys() <= ACTS.keys()


def test_containers_have_no_cables() -> None:
    assert obstacle(scenarios.load("dead-link"), "compose") == (
        "link down: containers have no such fault: --stack local"
    )


def test_without_a_stack_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chaos", "live", "stops", "--stack", "compose"],
        env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"; start the stack: {live_compose.START}\n")


@pytest.mark.parametrize(("status", "fails"), [(0, False), (137, False), (1, True)])
def test_a_container_that_ends_of_a_signal_takes_the_command_that_sent_it_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, fails: bool
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\n[ "$1" != ps ] || exec echo c0ffee\nexit {status}\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scheduler = Container("scheduler-1")
    with pytest.raises(TrialError) if fails else contextlib.nullcontext():
        scheduler.crash()


class Fleet:
    """A client of a cell of two nodes with two devices each."""

    def __init__(self, *, jobs: int = 0, service: str = "in_service") -> None:
        self._jobs, self._service = jobs, service

    def cell(self) -> views_pb2.CellView:
        return views_pb2.CellView(jobs_running=self._jobs)

    def node(self, name: str) -> views_pb2.NodeView:
        devices = [views_pb2.DeviceView(index=index) for index in range(2)]
        return views_pb2.NodeView(node=name, state="ready", service=self._service, devices=devices)


@pytest.mark.parametrize(
    ("fleet", "shape", "why"),
    [
        (Fleet(), Shape(nodes=2, devices=2), ""),
        (Fleet(), Shape(nodes=3, devices=2), "the scenario needs 3 nodes, and 2 containers of nodes run"),
        (Fleet(), Shape(nodes=1, devices=4), "the scenario needs 4 devices a node, and node-a has 2"),
        (Fleet(jobs=1), Shape(nodes=2, devices=2), "1 jobs run or wait in this cell"),
        (Fleet(service="cordoned"), Shape(nodes=2, devices=2), "node-a is ready, cordoned"),
    ],
)  # fmt: skip
def test_a_stack_that_is_too_small_or_at_work_is_not_struck(
    fleet: Fleet, shape: Shape, why: str
) -> None:
    said = live_compose.unfit(cast("Client", fleet), ["node-a", "node-b"], shape)
    assert said.startswith(why) and bool(said) == bool(why)


def test_checks_name_nodes_as_they_are_called_there() -> None:
    check = Check(
        "GangPlaced", "it gets others", subject="n0001", detail="on n0000 n0001", at_least=1
    )
    called = live.as_called(check, {"n0000": "node-a", "n0001": "node-b"})
    assert (called.subject, called.detail) == ("node-b", "on node-a node-b")
    assert live.as_called(check, {}) == check


class Watched(Scene[TrialCell]):
    """Nothing strikes it."""

    def strike(self, fault: Fault) -> None:
        raise AssertionError(fault)

    def keep(self, folder: Path) -> None:
        raise AssertionError(folder)


def test_a_log_is_judged_from_where_the_scenario_began() -> None:
    with TrialCell("judged", agents=1) as cell, cell.client() as client:
        cell.until("the agent", lambda: client.cell().nodes_ready == 1)
        scene = Watched(cell)
        before = done(client, "before")
        first = client.cell().offset + 1
        after = done(client, "after")
        whole = live.judge(scene, [])
        scene.first = first
        part = live.judge(scene, [])
    assert (whole.broken, part.broken) == ([], [])
    assert ended(whole) == {before, after} and ended(part) == {after}
    assert (part.events[0].kind, part.events[0].at_ms) == ("NodeJoined", 0)
    assert part.entries == whole.entries - first


def done(client: Client, name: str) -> str:
    """A job that has ended."""
    return client.wait(client.submit(job_request({"name": name, "command": ["true"]})).job).job


def ended(judged: live.Judged) -> set[str]:
    """The jobs that it speaks of."""
    return {event.subject for event in judged.events if event.kind == "final"}
