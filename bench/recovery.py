"""Time for a scheduler to lead again with 100,000 live jobs: from its start to its first accepted entry.

A new process each round: interpreter, snapshot, the log behind it, election, the opening entry, and reading that back.
Jobs on every device of the cell run, the rest wait. Once more without a snapshot, from the whole log.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench import _history as history
from bench.registry import Measured, at_most
from services.runtime.ports import EventLog
from services.runtime.reader import LogReader
from services.runtime.recovery import take_snapshot
from services.runtime.settings import CellSettings
from services.runtime.wiring import Cell, open_cell
from statemachines.cluster import Cluster

_JOBS: Final = {"small": 10_000, "full": 100_000}
_ROUNDS: Final = 3
# Entries behind the snapshot, as many as a busy leader appends in some seconds.
_TAIL_ENTRIES: Final = 100
_JOBS_PER_NODE: Final = 13
_LEADS_WITHIN_S: Final = 120.0
_BAR_S: Final = 5.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    parser.add_argument(
        "--jobs", type=int, help="live jobs (default: 10,000 or 100,000 by --scale)"
    )


def run(options: argparse.Namespace) -> Measured:
    """Make the state, then start schedulers on it, one after the other, each killed when it leads."""
    jobs = options.jobs or _JOBS[options.scale]
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as directory:
        cell = open_cell(CellSettings(cell=history.CELL, directory=directory))
        log = cell.event_log()
        cluster = Cluster(history.CELL)
        _make(cell, log, jobs)
        LogReader(log, cluster).read_to_end()
        assert len(cluster.jobs) == jobs, "not all jobs live"
        whole_s, whole_rss_mib = _lead(Path(directory), log, cluster)
        snapshot_mib = _save(cell, cluster)
        _append_tail(cell, log, cluster)
        rounds = [_lead(Path(directory), log, cluster) for _ in range(_ROUNDS)]
        log.close()
        cell.close()
    seconds = round(statistics.median(took_s for took_s, _ in rounds), 3)
    return Measured(
        figures={
            "seconds": seconds,
            "snapshot_mib": round(snapshot_mib, 1),
            "rss_mib": round(max(rss_mib for _, rss_mib in rounds), 1),
            "round_seconds": [round(took_s, 3) for took_s, _ in rounds],
            "whole_log_seconds": round(whole_s, 3),
            "whole_log_rss_mib": round(whole_rss_mib, 1),
        },
        bars={"seconds": at_most(seconds, _BAR_S)},
        params={"jobs": jobs, "nodes": jobs // _JOBS_PER_NODE, "tail_entries": _TAIL_ENTRIES},
    )


def _make(cell: Cell, log: EventLog, jobs: int) -> None:
    """A log of term 1 in which that many jobs live, and a lock file that knows the term."""
    leadership = cell.leadership("bench")
    assert leadership.campaign(0) == 1, "another leads a new cell"
    leadership.close()
    recorder = history.Recorder(log, began_at_ms=cell.clock.wall_ms() - 3_600_000)
    nodes = jobs // _JOBS_PER_NODE
    for fact in (*history.opening(nodes), *history.live(jobs, nodes)):
        recorder.add(fact)
    recorder.flush()


def _save(cell: Cell, cluster: Cluster) -> float:
    """Save a snapshot as a leader does; its size in MiB."""
    snapshots = cell.snapshots()
    snapshot = take_snapshot(cluster)
    snapshots.save(snapshot)
    snapshots.close()
    return len(snapshot.data) / 2**20


def _append_tail(cell: Cell, log: EventLog, cluster: Cluster) -> None:
    """Entries that only the log holds."""
    recorder = history.Recorder(
        log, began_at_ms=cell.clock.wall_ms(), head=cluster.head, term=cluster.term
    )
    for waiting in history.waits(cluster, _TAIL_ENTRIES * history.FACTS_PER_ENTRY):
        recorder.add(waiting)
    recorder.flush()
    LogReader(log, cluster).read_to_end()


def _lead(directory: Path, log: EventLog, cluster: Cluster) -> tuple[float, float]:
    """Start a scheduler; seconds until its first entry was accepted, and its memory then in MiB. Ends by kill -9."""
    reader, term = LogReader(log, cluster), cluster.term
    argv = [sys.executable, "-m", "services.scheduler", "--cell", history.CELL]
    argv += ["--directory", str(directory), "--log-level", "error"]
    began = time.monotonic()
    with subprocess.Popen(argv) as scheduler:
        while cluster.term == term:
            reader.read(timeout_s=0.5)
            assert scheduler.poll() is None, "the scheduler ended"
            assert time.monotonic() - began < _LEADS_WITHIN_S, "nobody leads"
        took_s = time.monotonic() - began
        rss_mib = _rss_mib(scheduler.pid)
        scheduler.kill()
    reader.read_to_end()
    return took_s, rss_mib


def _rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
