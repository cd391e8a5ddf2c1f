"""Schedulers that all believe to lead: the chain voids entries of all but one, the state stays right, and both are visible."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from functools import partial

import pytest

from services.runtime.trial import TrialCell
from statemachines.facts import JobAdmitted, TermOpened
from tests.live.audit import all_readers_agree
from tidemill import Client, job_request

CLIENTS = 4
USURPERS_MAX = 60


class Load:
    """Clients that submit without a pause until they are told to stop."""

    def __init__(self, cell: TrialCell) -> None:
        self.acknowledged: list[str] = []
        self._cell = cell
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._submit, args=(n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _submit(self, number: int) -> None:
        with self._cell.client() as client:
            i = 0
            while not self._stopping.is_set():
                job = job_request({"name": f"j{number}-{i}", "command": ["true"], "cpu": 1})
                self.acknowledged.append(client.submit(job).job)
                i += 1


@pytest.mark.timeout(300)
def test_with_the_election_switched_off_the_chain_keeps_the_state_right() -> None:
    flags = ("--leadership", "always", "--log-level", "warning")
    with TrialCell("two", flags=flags) as cell, cell.client() as client:
        load = Load(cell)
        usurpers = []
        try:
            for n in range(USURPERS_MAX):
                usurpers.append(
                    cell.spawn(f"usurper-{n}", "services.scheduler", *cell.flags, *flags)
                )
                cell.until("another term", partial(_above, client, client.cell().term))
                if client.cell().voided > 0:
                    break
        finally:
            load.stop()
        for usurper in usurpers:
            usurper.kill()
            usurper.wait()
        tail = subprocess.run(
            [
                sys.executable, "-m", "tidemill.cli", "--cell", str(cell.directory),
                "log", "tail", "--void", "--lines", "10000", "-o", "json",
            ],
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout  # fmt: skip
        with cell.client() as again:
            cell.until("one leader", lambda: again.cell().term > 0)
            audit = all_readers_agree(cell, again)
    assert audit.broken == []
    assert audit.cluster.voided > 0, "no two leaders ever met"
    assert Counter(fact.job for fact in audit.of(JobAdmitted)) == Counter(load.acknowledged)
    assert len(audit.of(TermOpened)) > 1
    assert "does not extend the head" in tail or "is over" in tail


def _above(client: Client, term: int) -> bool:
    return client.cell().term > term
