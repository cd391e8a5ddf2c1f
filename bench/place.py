"""Placements per second at 1,000 nodes of 8 devices, and the time from a submission to its running.

Jobs of one device that end at once are streamed through a whole cell: gateway, log, leader, and simulated nodes that
report each start and end. Latency is measured with a modest load, not at the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

from bench._cell import MeasuredCell, attach
from bench.registry import Measured, at_least
from services.runtime import codec
from simulation.fleet import COMMAND, NodeShape
from statemachines.facts import AttemptStarted, GangPlaced
from tidemill import Client, TidemillError, job_request
from tidemill.v1 import job_service_pb2

_NODES: Final = {"small": 100, "full": 1_000}
_JOBS: Final = {"small": 2_000, "full": 20_000}
_PACED: Final = {"small": 200, "full": 2_000}
_PACED_PER_S: Final = 100


class Seen:
    """When the log showed each job placed and running, on this machine's clock."""

    def __init__(self, client: Client) -> None:
        self.placed: dict[str, float] = {}
        self.running: dict[str, float] = {}
        self._client = client
        threading.Thread(target=self._follow, daemon=True).start()

    def wait(self, jobs: int) -> None:
        """Until that many ran; raises when that takes too long."""
        ends = time.monotonic() + 300
        while len(self.running) < jobs:
            assert time.monotonic() < ends, f"{len(self.running)} of {jobs} jobs ran within 300 s"
            time.sleep(0.02)

    def _follow(self) -> None:
        with contextlib.suppress(TidemillError):  # Its connection is closed when all is measured.
            self._read()

    def _read(self) -> None:
        for read in self._client.entries(follow=True):
            now = time.monotonic()
            for recorded in codec.decode_body(read.entry.body)[1]:
                fact = recorded.fact
                if isinstance(fact, GangPlaced):
                    self.placed[fact.job] = now
                elif isinstance(fact, AttemptStarted):
                    self.running[fact.job] = now


def run(options: argparse.Namespace) -> Measured:
    """First as fast as it goes, then at a modest pace."""
    count, jobs, paced = _NODES[options.scale], _JOBS[options.scale], _PACED[options.scale]
    shapes = [NodeShape(f"n{i:05}", 64_000, 1_048_576, 8, "H100") for i in range(count)]
    with MeasuredCell() as cell, cell.client() as client, cell.client() as watching:
        attach(cell, shapes)
        seen = Seen(watching)
        began = time.monotonic()
        for _, answer in client.submit_many(_job() for _ in range(jobs)):
            assert answer.status == job_service_pb2.SUBMIT_STATUS_ADMITTED, answer
        seen.wait(jobs)
        placements_per_s = jobs / (max(seen.placed.values()) - began)
        runs_per_s = jobs / (max(seen.running.values()) - began)
        waits_ms = sorted(_paced(client, seen, paced, jobs))
    return Measured(
        figures={
            "placements_per_s": round(placements_per_s),
            "started_per_s": round(runs_per_s),
            "submit_to_running_p50_ms": round(waits_ms[len(waits_ms) // 2], 1),
            "submit_to_running_p99_ms": round(waits_ms[len(waits_ms) * 99 // 100], 1),
        },
        bars={"placements_per_s": at_least(round(placements_per_s), 1_000)},
        params={"nodes": count, "jobs": jobs, "paced_jobs": paced, "paced_per_s": _PACED_PER_S},
    )


def _paced(client: Client, seen: Seen, jobs: int, before: int) -> Iterator[float]:
    """Milliseconds from the call of each submission until the log shows it running."""
    sent: list[float] = []

    def requests() -> Iterator[job_service_pb2.SubmitJobRequest]:
        began = time.monotonic()
        for i in range(jobs):
            wait_s = i / _PACED_PER_S - (time.monotonic() - began)
            if wait_s > 0:
                time.sleep(wait_s)
            sent.append(time.monotonic())
            yield _job()

    ids = [answer.job for _, answer in client.submit_many(requests())]
    seen.wait(before + jobs)
    for job, at in zip(ids, sent, strict=True):
        yield 1000 * (seen.running[job] - at)


def _job() -> job_service_pb2.SubmitJobRequest:
    return job_request({"name": "bench", "command": [COMMAND, "0"], "cpu": 1, "gpus": 1})
