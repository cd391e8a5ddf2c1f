"""Two schedulers that both believe to lead: the chain voids one's entries, and both are visible."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from services.runtime.trial import TrialCell
from statemachines.facts import JobAdmitted
from tests.live.audit import all_readers_agree
from tidemill import job_request

JOBS = 200


@pytest.mark.timeout(240)
def test_with_the_election_switched_off_the_chain_keeps_the_state_right() -> None:
    with (
        TrialCell(
            "two", flags=("--schedulers", "2", "--leadership", "always", "--log-level", "warning")
        ) as cell,
        cell.client() as client,
    ):
        jobs = (job_request({"name": f"j{i}", "command": ["true"], "cpu": 1}) for i in range(JOBS))
        acknowledged = [answer.job for _, answer in client.submit_many(jobs)]
        cell.until("entries of both to meet", lambda: client.cell().voided > 0, within_s=90)
        tail = subprocess.run(
            [sys.executable, "-m", "tidemill.cli", "--cell", str(cell.directory), "log", "tail", "--void", "-o", "json"],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        # Only one goes on while the log is compared.
        for pid in cell.pids_of("scheduler")[1:]:
            subprocess.run(["kill", "-STOP", str(pid)], check=True)
        try:
            audit = all_readers_agree(cell, client)
        finally:
            for pid in cell.pids_of("scheduler"):
                subprocess.run(["kill", "-CONT", str(pid)], check=True)
    assert audit.broken == []
    assert Counter(fact.job for fact in audit.of(JobAdmitted)) == Counter(acknowledged)
    assert audit.cluster.voided > 0
    assert "does not extend the head" in tail or "is over" in tail
