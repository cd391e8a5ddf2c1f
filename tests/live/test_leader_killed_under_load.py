"""10,000 submissions by the command line's stream and 50 clients, while the leader is killed ten times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from services.runtime.trial import TrialCell
from simulation.fleet import COMMAND, NodeShape
from statemachines.facts import JobAdmitted
from tests.live.audit import all_readers_agree
from tidemill import Client, job_request
from tidemill.v1 import job_service_pb2

STREAMED, CLIENTS, EACH, KILLS = 5_000, 50, 100, 10


@pytest.fixture
def cell() -> Iterator[TrialCell]:
    """Two schedulers, 100 simulated nodes."""
    with TrialCell("load", flags=("--schedulers", "2", "--log-level", "warning")) as started:
        shapes = [NodeShape(f"n{i:03}", 64_000, 65_536, 8, "H100") for i in range(100)]
        file = started.directory / "fleet.json"
        file.write_bytes(msgspec.json.encode(shapes))
        started.spawn(
            "fleet", "simulation.fleet", "--gateway", started.address,
            "--token-file", str(started.node_token), "--nodes", str(file),
        )  # fmt: skip
        with started.client() as client:
            started.until("the fleet", lambda: client.cell().nodes_ready == 100)
        yield started


@pytest.mark.timeout(420)
def test_every_acknowledged_submission_is_in_the_log_once_and_every_job_ends(
    cell: TrialCell,
) -> None:
    acknowledged: list[str] = []
    killing = threading.Thread(target=_kill_leaders, args=(cell,))
    stream = threading.Thread(target=lambda: acknowledged.extend(_by_command_line(cell)))
    clients = [
        threading.Thread(target=_by_client, args=(cell, n, acknowledged)) for n in range(CLIENTS)
    ]
    for thread in (stream, *clients, killing):
        thread.start()
    for thread in (stream, *clients, killing):
        thread.join()
    assert len(acknowledged) == len(set(acknowledged)) == STREAMED + CLIENTS * EACH
    with cell.client() as client:
        cell.until("every job to end", lambda: _all_ended(client), within_s=240)
        audit = all_readers_agree(cell, client)
    assert audit.broken == []
    assert audit.states() == Counter(succeeded=len(acknowledged))
    admitted = [fact for fact in audit.facts if isinstance(fact, JobAdmitted)]
    assert len(admitted) == len(acknowledged)
    assert {fact.job for fact in admitted} == set(acknowledged)
    assert audit.cluster.term > KILLS


def _all_ended(client: Client) -> bool:
    cell = client.cell()
    return cell.jobs_waiting + cell.jobs_running + cell.jobs_held == 0


def _job(name: str) -> job_service_pb2.SubmitJobRequest:
    job = job_request({"name": name, "command": [COMMAND, "0.05"], "cpu": 1, "gpus": 1})
    job.request_id = name
    return job


def _by_client(cell: TrialCell, number: int, acknowledged: list[str]) -> None:
    with cell.client() as client:
        for i in range(EACH):
            answer = client.submit(_job(f"client-{number}-{i}"))
            acknowledged.append(answer.job)


def _by_command_line(cell: TrialCell) -> list[str]:
    lines = "".join(
        json.dumps(
            {
                "name": f"line-{i}",
                "id": f"line-{i}",
                "command": [COMMAND, "0.05"],
                "cpu": 1,
                "gpus": 1,
            }
        )
        + "\n"
        for i in range(STREAMED)
    )
    done = subprocess.run(
        [sys.executable, "-m", "tidemill.cli", "--cell", str(cell.directory), "submit", "-", "-o", "name"],
        input=lines, capture_output=True, text=True, check=False, timeout=400, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def _kill_leaders(cell: TrialCell) -> None:
    with cell.client() as client:
        for _ in range(KILLS):
            time.sleep(1.0)  # Between two kills the next leader has begun.
            term = client.cell().term
            cell.kill_leader(client)
            cell.until("the next leader", partial(_above, client, term))


def _above(client: Client, term: int) -> bool:
    return client.cell().term > term
