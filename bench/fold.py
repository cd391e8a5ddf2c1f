"""Facts folded from stored bytes per second, on one core: read, decode, hash, fold.

The log holds whole lives of jobs, some in gangs, some with checkpoints, on 1,000 nodes of 8 devices. Every reader of a
cell does this work, and a replay of a year is nothing else.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import Final

from bench import _history as history
from bench._cell import log_argument, storage
from bench.registry import Measured, at_least
from services.runtime.reader import LogReader
from services.runtime.wiring import open_cell
from statemachines import snapshot
from statemachines.cluster import Cluster

NODES: Final = 1_000
_JOBS: Final = {"small": 5_000, "full": 100_000}
_ROUNDS: Final = 3
_BAR_FACTS_PER_S: Final = 250_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    log_argument(parser)
    parser.add_argument(
        "--jobs", type=int, help="jobs in the log (default: 5,000 or 100,000 by --scale)"
    )


def run(options: argparse.Namespace) -> Measured:
    """Make the log, then fold it three times; the best counts, in CPU time, for others share this machine."""
    jobs = options.jobs or _JOBS[options.scale]
    with storage(options.log) as settings:
        cell = open_cell(settings)
        log = cell.event_log()
        recorder = history.Recorder(log, cell=settings.cell)
        for fact in history.opening(NODES):
            recorder.add(fact)
        for first in range(1, jobs, NODES // 2):
            for fact in history.life(first, NODES):
                recorder.add(fact)
        recorder.flush()
        rounds, digests = [], set()
        for _ in range(_ROUNDS):
            cluster = Cluster(settings.cell)
            gc.collect()
            started = time.process_time()
            LogReader(log, cluster).read_to_end()
            rounds.append(time.process_time() - started)
            assert (cluster.facts, cluster.voided) == (recorder.facts, 0), "not folded whole"
            digests.add(snapshot.digest(cluster).hex())
        log.close()
        cell.close()
    assert len(digests) == 1, "one log, several states"
    facts_per_s = recorder.facts / min(rounds)
    return Measured(
        figures={
            "facts_per_s": round(facts_per_s),
            "log_mib_per_s": round(recorder.log_bytes / min(rounds) / 2**20, 1),
            "facts": recorder.facts,
            "entries": recorder.entries,
            "log_bytes_per_fact": round(recorder.log_bytes / recorder.facts, 1),
            "round_cpu_seconds": [round(seconds, 3) for seconds in rounds],
            "state_digest": min(digests),
        },
        bars={"facts_per_s": at_least(round(facts_per_s), _BAR_FACTS_PER_S)},
        params={"nodes": NODES, "jobs": jobs, "facts_per_entry": history.FACTS_PER_ENTRY},
    )
