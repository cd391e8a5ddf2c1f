"""kill -9 of each process of a cell in turn, of all at once, and a start of them all: a running job never notices."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from services.runtime.trial import TrialCell
from statemachines.facts import GangPlaced, RunStarted
from tests.live.audit import all_readers_agree
from tidemill import Client, job_request

PROGRAM = """
import os, sys, time
with open(sys.argv[1], "a") as journal:
    print(os.getpid(), file=journal, flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
"""


@pytest.mark.timeout(240)
def test_a_running_job_is_found_again_whatever_is_killed(tmp_path: Path) -> None:
    journal, stop = tmp_path / "journal", tmp_path / "stop"
    with (
        TrialCell(
            "kills", agents=1, flags=("--fake-gpus", "4xH100", "--log-level", "warning")
        ) as cell,
        cell.client() as client,
    ):
        command = [sys.executable, "-c", PROGRAM, str(journal), str(stop)]
        job = client.submit(
            job_request({"name": "stays", "command": command, "cpu": 1, "gpus": 2})
        ).job
        cell.until("the job to run", lambda: client.job(job).state == "running")
        for victim in ("scheduler", "gateway", "health", "agent"):
            killed = cell.pids_of(victim)
            assert killed, f"no {victim} to kill"
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            cell.until(f"{victim} to be back", partial(_is_back, cell, victim, killed))
            _still_works(cell, client, victim)
        for pid in cell.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        cell.up.wait()
        cell.start()
        with cell.client() as again:
            _still_works(cell, again, "everything")
            assert again.job(job).state == "running"
            assert again.job(job).attempt == 1
            stop.touch()
            assert again.wait(job, timeout_s=60).state == "succeeded"
            audit = all_readers_agree(cell, again)
    assert audit.broken == []
    assert len(journal.read_text().split()) == 1, "started more than once"
    of_it = [fact for fact in audit.facts if isinstance(fact, GangPlaced) and fact.job == job]
    assert len(of_it) == 1
    assert (
        len(
            [
                fact
                for fact in audit.facts
                if isinstance(fact, RunStarted) and fact.run.startswith(job)
            ]
        )
        == 1
    )


def _still_works(cell: TrialCell, client: Client, after: str) -> None:
    """A small job goes through from end to end."""
    job = client.submit(
        job_request({"name": f"after-{after}", "command": ["true"], "cpu": 1}), deadline_s=60.0
    ).job
    cell.until(
        f"a job to succeed after {after}", lambda: client.job(job).state == "succeeded", within_s=90
    )


def _is_back(cell: TrialCell, service: str, killed: Sequence[int]) -> bool:
    """As another process: the killed one is listed until its parent has noticed."""
    return bool(set(cell.pids_of(service)) - set(killed))
