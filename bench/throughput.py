"""Jobs accepted and placed per second by a whole cell with 12,500 nodes, and how long a decision takes at a given pace.

The nodes are recorded before the cell starts and nobody attaches for them: gateway, topics, leader, log and fold do all
of their work, agents none. Each job takes one device and keeps it. With 1,000 nodes simulated agents are attached
and each job also starts and ends, so that figure is of whole lives. Clients share the machine with the cell.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from typing import Final

from bench import _history as history
from bench._cell import (
    MeasuredCell,
    MeasuredKafkaCell,
    attach,
    log_argument,
    measured,
    stack,
)
from bench.registry import Measured, at_least, at_most
from services.runtime.trial import TrialCell
from services.runtime.wiring import open_cell
from simulation.fleet import COMMAND, NodeShape
from tidemill import Client, job_request
from tidemill.v1 import job_service_pb2

_JOBS: Final = {"small": 3_000, "full": 40_000}
_LIVES: Final = {"small": 1_000, "full": 10_000}
_PACES: Final = {"small": ((100, 3), (500, 3)), "full": ((100, 15), (500, 15))}
_STREAMS: Final = 2
_PLACED_WITHIN_S: Final = 300.0
# A look at a cell of so many nodes takes the gateway 40 ms.
_LOOK_EVERY_S: Final = 0.25
# Nobody speaks for the recorded nodes; that is no silence to judge here.
_NEVER_SILENT: Final = {
    "TIDEMILL_HEALTH_SUSPECT_AFTER_MS": "86400000",
    "TIDEMILL_HEALTH_LOST_AFTER_MS": "86400001",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    log_argument(parser)
    parser.add_argument("--nodes", type=int, default=12_500, help="nodes with 8 devices each")
    parser.add_argument("--jobs", type=int, help="jobs of the load (default: by --scale)")
    parser.add_argument("--no-lives", action="store_true", help="leave out the 1,000 nodes")


def run(options: argparse.Namespace) -> Measured:
    """The load, then the paces, on one cell; then whole lives on another."""
    jobs = min(options.jobs or _JOBS[options.scale], options.nodes * history.DEVICES * 2 // 3)
    figures: dict[str, object] = {}
    with _recorded(options.log, options.nodes) as cell:
        jobs_per_s = _load(cell, jobs)
        entries, size = _written(cell)
        p50_ms = p99_ms = 0.0
        for per_s, seconds in _PACES[options.scale]:
            waits_ms = _paced(cell, per_s, seconds)
            p50_ms, p99_ms = waits_ms[len(waits_ms) // 2], waits_ms[len(waits_ms) * 99 // 100]
            figures[f"decision_p50_ms_{per_s}_per_s"] = round(p50_ms, 1)
            figures[f"decision_p99_ms_{per_s}_per_s"] = round(p99_ms, 1)
    figures |= {
        "jobs_per_s": round(jobs_per_s),
        "decision_p50_ms": round(p50_ms, 1),
        "decision_p99_ms": round(p99_ms, 1),
        "entries_per_s": round(entries * jobs_per_s / jobs, 1),
        "log_bytes_per_job": round(size / jobs),
    }
    if not options.no_lives:
        figures["jobs_per_s_1000_nodes"] = round(_lives(options.log, _LIVES[options.scale]))
    return Measured(
        figures,
        bars={
            "jobs_per_s": at_least(round(jobs_per_s), 2_000),
            "decision_p99_ms": at_most(round(p99_ms, 1), 250),
        },
        params={"jobs": jobs, "streams": _STREAMS, "schedulers": 1, "gateways": 1},
    )


# --- cells


class _Recorded(TrialCell):
    """Its nodes are in the log before its first process starts."""

    nodes = 0

    def prepare(self) -> None:
        """Record them, in term 1 of nobody."""
        super().prepare()
        with contextlib.ExitStack() as closing:
            cell = open_cell(self.settings)
            closing.callback(cell.close)
            if self.settings.leadership == "file":  # Whoever leads next must be above term 1.
                leadership = cell.leadership("bench")
                leadership.campaign(0)
                leadership.close()
            log = cell.event_log()
            closing.callback(log.close)
            began_ms = cell.clock.wall_ms() - 60_000
            recorder = history.Recorder(log, began_at_ms=began_ms, cell=self.name, consumes=False)
            for fact in history.opening(self.nodes):
                recorder.add(fact)
            recorder.flush()


class _RecordedEmbedded(_Recorded, MeasuredCell):
    """On the embedded log."""


class _RecordedKafka(_Recorded, MeasuredKafkaCell):
    """On Kafka."""


@contextlib.contextmanager
def _recorded(log: str, nodes: int) -> Iterator[_Recorded]:
    with contextlib.ExitStack() as closing:
        cell: _Recorded
        if log == "embedded":
            cell = _RecordedEmbedded()
        else:
            kafka, etcd = closing.enter_context(stack())
            cell = _RecordedKafka(kafka=kafka, etcd=etcd)
        cell.nodes = nodes
        closing.enter_context(_environment(_NEVER_SILENT))
        yield closing.enter_context(cell)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


# --- loads


def _load(cell: TrialCell, jobs: int) -> float:
    """Jobs a second, from the first submission until the gateway shows the last one placed."""
    where, each = str(cell.directory), jobs // _STREAMS
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(_STREAMS) as pool, cell.client() as client:
        pool.map(_connect, [where] * _STREAMS)
        free = client.cell().devices_free
        began = time.monotonic()
        admitted = sum(pool.map(_stream, [(where, each)] * _STREAMS))
        assert admitted == each * _STREAMS, f"{admitted} of {each * _STREAMS} were admitted"
        while free - client.cell().devices_free < admitted:
            assert time.monotonic() - began < _PLACED_WITHIN_S, f"not placed: {client.cell()}"
            time.sleep(_LOOK_EVERY_S)
        return admitted / (time.monotonic() - began)


def _connect(where: str) -> int:
    with Client(cell=where) as client:
        return client.cell().term


def _stream(task: tuple[str, int]) -> int:
    where, count = task
    with Client(cell=where, deadline_s=120.0) as client:
        answers = client.submit_many(_job("true") for _ in range(count))
        return sum(answer.status == job_service_pb2.SUBMIT_STATUS_ADMITTED for _, answer in answers)


def _paced(cell: TrialCell, per_s: int, seconds: int) -> list[float]:
    """Milliseconds from each submission to the answer that it was decided, in order of size."""
    count = per_s * seconds
    sent: list[float] = []

    def requests() -> Iterator[job_service_pb2.SubmitJobRequest]:
        began = time.monotonic()
        for i in range(count):
            wait_s = i / per_s - (time.monotonic() - began)
            if wait_s > 0:
                time.sleep(wait_s)
            sent.append(time.monotonic())
            yield _job("true")

    with cell.client() as client:
        waits_ms = []
        for (_, answer), began in zip(client.submit_many(requests()), _lazily(sent), strict=False):
            assert answer.status == job_service_pb2.SUBMIT_STATUS_ADMITTED, answer
            waits_ms.append(1000 * (time.monotonic() - began))
    assert len(waits_ms) == count, f"{len(waits_ms)} of {count} were answered"
    return sorted(waits_ms)


def _lazily(sent: list[float]) -> Iterator[float]:
    """Each once it is there: an answer comes after its request."""
    i = 0
    while True:
        yield sent[i]
        i += 1


def _lives(log: str, jobs: int) -> float:
    """Jobs a second that were placed, started and ended on 1,000 simulated nodes with an agent each."""
    shapes = [NodeShape(f"n{i:05}", 64_000, 1_048_576, 8, "H100") for i in range(1_000)]
    with measured(log) as cell, cell.client() as client:
        attach(cell, shapes)
        began = time.monotonic()
        for _, answer in client.submit_many(_job(COMMAND, "0") for _ in range(jobs)):
            assert answer.status == job_service_pb2.SUBMIT_STATUS_ADMITTED, answer
        while (now := client.cell()).jobs_waiting + now.jobs_running:
            assert time.monotonic() - began < _PLACED_WITHIN_S, f"not ended: {now}"
            time.sleep(_LOOK_EVERY_S)
        return jobs / (time.monotonic() - began)


def _job(*command: str) -> job_service_pb2.SubmitJobRequest:
    return job_request({"name": "bench", "command": list(command), "cpu": 1, "gpus": 1})


def _written(cell: _Recorded) -> tuple[int, int]:
    """Entries, and bytes of them, that the cell has written behind the recorded nodes."""
    with contextlib.ExitStack() as closing:
        opened = open_cell(cell.settings)
        closing.callback(opened.close)
        log = opened.event_log()
        closing.callback(log.close)
        offset, entries, size = 0, 0, 0
        recorded = (cell.nodes + 2 - 1) // history.FACTS_PER_ENTRY + 1
        while records := log.read(offset, limit=256, timeout_s=0):
            for record in records:
                if record.offset >= recorded:
                    entries, size = entries + 1, size + len(record.value)
            offset = records[-1].offset + 1
        return entries, size
