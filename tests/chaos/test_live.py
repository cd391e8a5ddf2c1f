"""Real processes on hosts with real links: what the agent's monitor sees moves the work, and Ctrl-C leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from chaos import live, scenarios
from chaos.live_acts import ACTS, NEEDS_NETWORK, NEEDS_STACK, Stage
from chaos.live_hosts import Hosts
from chaos.live_stage import obstacle, stack_of
from services.runtime.trial import TrialCell

pytestmark = pytest.mark.timeout(400)
WITHIN_S = 120.0


@pytest.mark.parametrize("name", ["short-flap", "dead-link"])
def test_scenario_holds_on_real_links(namespaces: None, name: str) -> None:
    assert live.play(scenarios.load(name), "embedded").broken == ()


def ours(run: int) -> list[str]:
    """Namespaces and mounts of a run."""
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    mounts = Path("/proc/mounts").read_text().splitlines()
    return [
        *[line for line in names.splitlines() if f"tidemill-{run}-" in line],
        *[line for line in mounts if line.startswith(f"tidemill-{run}-")],
    ]


def naming(mark: str) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and mark.encode() in _words(entry)
    ]


def _words(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("hosts", [1, 3])
def test_ctrl_c_leaves_no_namespace_mount_or_process(
    namespaces: None, tmp_path: Path, hosts: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "chaos", "live", "full-disk"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        ends = time.monotonic() + WITHIN_S
        while len(ours(process.pid)) < hosts:
            assert time.monotonic() < ends and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, said) == (130, "Interrupted; nothing is left.\n")
    assert ours(process.pid) == [] and naming(str(tmp_path)) == []
    assert list(tmp_path.glob("tidemill-*")) == []


def test_every_live_scenario_can_be_played_where_it_belongs() -> None:
    found = [name for name in scenarios.names() if scenarios.load(name).live]
    assert {"seven-of-eight", "one-of-three", "restarts"} <= set(found)
    for name in found:
        scenario = scenarios.load(name)
        assert {fault.kind for fault in scenario.fault} <= ACTS.keys(), name
        assert obstacle(scenario, stack_of(scenario)) == "", name
    assert not NEEDS_NETWORK & NEEDS_STACK


def test_brokers_are_not_struck_where_there_are_none() -> None:
    assert obstacle(scenarios.load("one-of-three"), "embedded") == (
        "kill broker, kill etcd, pause broker, pause etcd, restart broker needs real brokers: --stack local"
    )


def test_a_fault_that_lasts_is_undone_in_time_and_all_others_at_the_end() -> None:
    stage = Stage(cast("TrialCell", None), cast("Hosts", None), None)
    undone: list[str] = []
    stage.later(0, lambda: undone.append("stays"))
    stage.later(1, lambda: undone.append("short"))
    stage.later(600_000, lambda: undone.append("long"))
    ends = time.monotonic() + WITHIN_S
    while not undone:
        assert time.monotonic() < ends
        stage.undo_due()
    assert undone == ["short"]
    stage.heal()
    assert undone == ["short", "stays", "long"]
