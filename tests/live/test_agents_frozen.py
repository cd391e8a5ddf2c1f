"""Agents stopped for 3, 8, 20 and 60 seconds and thawed, with jobs that may overlap and jobs that must not."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from services.runtime.trial import TrialCell
from statemachines.facts import NodeLost, NodeSuspected, RunEnded
from statemachines.values import Evidence
from tests.live.audit import Audit
from tidemill import Client, job_request

# Says who it is, then lasts; each line of the journal is (attempt, pid).
PROGRAM = """
import os, sys, time
with open(sys.argv[1], "a") as journal:
    print(os.environ["TIDEMILL_ATTEMPT"], os.getpid(), file=journal, flush=True)
time.sleep(600)
"""
FENCE_S = 25
# (name of node and job, seconds frozen, overlap-safe)
FROZEN = (
    ("blink", 3, False),
    ("pause", 8, False),
    ("safe", 20, True),
    ("other", 20, False),
    ("gone", 60, False),
)


class Farm:
    """A cell whose agents can be frozen, each filled by one job; two more nodes are free."""

    def __init__(self, cell: TrialCell, client: Client) -> None:
        self.cell, self.client = cell, client
        self.agents: dict[str, int] = {}
        self.jobs: dict[str, str] = {}

    def start(self) -> None:
        for name, _, safe in FROZEN:
            self._agent(name)
            self.jobs[name] = self._submit(name, safe=safe)
            self.cell.until(f"{name} to run", partial(self._runs_on, name, name))
        for name in ("spare-0", "spare-1"):
            self._agent(name)

    def journal(self, name: str) -> list[tuple[int, int]]:
        """(attempt, pid) of each start of a job's program."""
        lines = self._journal(name).read_text().split("\n")
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines if line]

    def freeze(self, name: str, seconds: float) -> None:
        os.kill(self.agents[name], signal.SIGSTOP)
        time.sleep(seconds)  # The freeze itself.
        os.kill(self.agents[name], signal.SIGCONT)

    def attempt(self, name: str) -> int:
        return self.client.job(self.jobs[name]).attempt

    def _runs_on(self, job: str, node: str) -> bool:
        view = self.client.job(self.jobs[job])
        return (
            view.state == "running"
            and view.attempts[-1].runs[0].node == node
            and bool(self.journal(job))
        )

    def _agent(self, name: str) -> None:
        process = self.cell.spawn(
            f"agent-{name}", "services.agent", *self.cell.flags, "--gateway", self.cell.address, "--node", name,
            "--state", str(self.cell.directory / "hosts" / name), "--fake-gpus", "2xH100", "--cpu", "4", "--end-runs",
        )  # fmt: skip
        self.agents[name] = process.pid
        self.cell.until(f"{name} to join", lambda: self.client.node(name).state == "ready")

    def _submit(self, name: str, *, safe: bool) -> str:
        command = [sys.executable, "-c", PROGRAM, str(self._journal(name))]
        job = job_request(
            {"name": name, "command": command, "cpu": 1, "gpus": 2, "overlap_safe": safe}
        )
        job.spec.fence_after_ms = FENCE_S * 1000
        job.spec.grace_ms = 2_000
        self._journal(name).touch()
        return self.client.submit(job).job

    def _journal(self, name: str) -> Path:
        return self.cell.directory / f"{name}.journal"


@pytest.fixture
def farm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    """So many nodes frozen at once would be an incident: that rule has tests of its own."""
    monkeypatch.setenv("TIDEMILL_HEALTH_BREAKER_LEAST", "100")
    monkeypatch.setenv("TIDEMILL_SCHEDULER_FENCE_MARGIN_MS", "5000")
    with TrialCell("frozen", flags=("--log-level", "warning")) as cell, cell.client() as client:
        made = Farm(cell, client)
        made.start()
        yield made


@pytest.mark.timeout(300)
def test_frozen_agents_do_what_their_jobs_allow(farm: Farm) -> None:
    threads = [
        threading.Thread(target=farm.freeze, args=(name, seconds)) for name, seconds, _ in FROZEN
    ]
    for thread in threads:
        thread.start()
    # Overlap-safe: goes on elsewhere while its old host is still frozen.
    farm.cell.until(
        "the overlap-safe job to restart", lambda: farm.attempt("safe") == 2, within_s=19
    )
    # Not overlap-safe: nothing of it may start before the old run is known dead.
    assert farm.attempt("other") == 1
    assert farm.attempt("gone") == 1
    threads[3].join()
    farm.cell.until(
        "the other job to restart after the thaw", lambda: farm.attempt("other") == 2, within_s=40
    )
    # Frozen for a minute: killed by its supervisor on the host's own clock, restarted after the leader's longer wait.
    farm.cell.until("the fenced job to restart", lambda: farm.attempt("gone") == 2, within_s=60)
    for thread in threads:
        thread.join()
    farm.cell.until(
        "all nodes to be back", lambda: farm.client.cell().nodes_ready == 7, within_s=60
    )
    farm.cell.until("all jobs to run", lambda: farm.client.cell().jobs_running == 5, within_s=60)
    audit = Audit(farm.cell)
    assert audit.broken == []
    lost = {fact.node for fact in audit.facts if isinstance(fact, NodeLost)}
    suspected = {fact.node for fact in audit.facts if isinstance(fact, NodeSuspected)}
    assert lost == {"safe", "other", "gone"}
    assert suspected == {"pause", "safe", "other", "gone"}
    assert [attempt for attempt, _ in farm.journal("blink")] == [1]
    assert [attempt for attempt, _ in farm.journal("pause")] == [1]
    for name in ("safe", "other", "gone"):
        assert [attempt for attempt, _ in farm.journal(name)] == [1, 2], name
        old, new = (pid for _, pid in farm.journal(name))
        assert not _lives(old), f"the first run of {name} still lives"
        assert _lives(new)
    ends = {
        fact.run.split(".")[0]: fact.evidence for fact in audit.facts if isinstance(fact, RunEnded)
    }
    assert ends[farm.jobs["gone"]] is Evidence.SELF_FENCED


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
