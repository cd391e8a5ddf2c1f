"""A cell on three brokers and three etcd members of our own, with one agent whose job runs through everything."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.local.stack import Stack
from services.runtime.trial_kafka import KafkaTrialCell
from tidemill import Client, job_request

KEEP = os.environ.get("TIDEMILL_KEEP_LOGS")
PROGRAM = """
import os, sys, time
with open(sys.argv[1], "a") as journal:
    print(os.getpid(), file=journal, flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
"""


class LivingJob:
    """A job that must never notice anything: started once, and alive until it is told to end."""

    def __init__(self, cell: KafkaTrialCell, client: Client) -> None:
        self._cell = cell
        self._journal, self._stop = cell.directory / "journal", cell.directory / "stop"
        command = [sys.executable, "-c", PROGRAM, str(self._journal), str(self._stop)]
        wanted = job_request({"name": "lives", "command": command, "cpu": 1, "gpus": 1})
        self.id = client.submit(wanted, deadline_s=60.0).job
        cell.until("the job to run", lambda: client.job(self.id).state == "running")
        cell.until("its program to begin", self._journal.exists)

    def alive(self) -> bool:
        """Whether its first and only start still runs."""
        pids = self._journal.read_text().split()
        return len(pids) == 1 and Path(f"/proc/{pids[0]}").exists()

    def end(self, client: Client) -> None:
        """Let it end; it must have succeeded in its first attempt."""
        assert self.alive()
        self._stop.touch()
        view = client.wait(self.id, timeout_s=90)
        assert (view.state, view.attempt) == ("succeeded", 1)
        assert len(self._journal.read_text().split()) == 1, "started more than once"


@pytest.fixture
def cell(fault_stack: Stack) -> Iterator[KafkaTrialCell]:
    """Two schedulers, a gateway, health and one agent, on the stack that the test may hurt."""
    layout = fault_stack.layout
    flags = ("--schedulers", "2", "--fake-gpus", "4xH100")
    with KafkaTrialCell(
        "live", kafka=layout.bootstrap, etcd=layout.endpoints, agents=1, flags=flags
    ) as started:
        try:
            yield started
        finally:
            if KEEP:
                shutil.copy(started.directory / "up.log", KEEP)
            fault_stack.up()  # Its topics can be deleted.


@pytest.fixture
def client(cell: KafkaTrialCell) -> Iterator[Client]:
    with cell.client() as connected:
        yield connected


@pytest.fixture
def living(cell: KafkaTrialCell, client: Client) -> LivingJob:
    return LivingJob(cell, client)
