"""Time from a kill -9 of the leader to the next accepted entry, round after round, with a standby beside it.

Submissions go on all the while, so that the next entry is one that somebody waits for.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from typing import Final

from bench._cell import log_argument, measured
from bench.registry import Measured, at_most
from tidemill import Client, TidemillError, job_request

_ROUNDS: Final = {"small": 5, "full": 50}
_PER_S: Final = 50
_WITHIN_S: Final = 60.0


class Load:
    """Submissions at a modest pace until closed; `accepted` and `failed` count them."""

    def __init__(self, client: Client) -> None:
        self.accepted = 0
        self.failed = 0
        self._client = client
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Submit nothing more."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(1 / _PER_S):
            try:
                self._client.submit(job_request({"name": "bench", "command": ["true"], "cpu": 1}))
                self.accepted += 1
            except TidemillError:
                self.failed += 1


class Terms:
    """When each term's first entry was seen accepted, on this machine's clock."""

    def __init__(self, client: Client) -> None:
        self.seen: dict[int, float] = {}
        self._client = client
        threading.Thread(target=self._follow, daemon=True).start()

    def after(self, term: int) -> tuple[int, float]:
        """The first term above this one, and when it was seen."""
        ends = time.monotonic() + _WITHIN_S
        while time.monotonic() < ends:
            above = [each for each in self.seen if each > term]
            if above:
                return min(above), self.seen[min(above)]
            time.sleep(0.001)
        raise RuntimeError(f"no leader above term {term} within {_WITHIN_S:g} s")

    def _follow(self) -> None:
        with contextlib.suppress(TidemillError):  # Its connection is closed when all is measured.
            self._read()

    def _read(self) -> None:
        for read in self._client.entries(follow=True):
            self.seen.setdefault(read.entry.term, time.monotonic())


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    log_argument(parser)


def run(options: argparse.Namespace) -> Measured:
    """Kill the leader again and again."""
    rounds = _ROUNDS[options.scale]
    took_s: list[float] = []
    with (
        measured(options.log, flags=("--schedulers", "2")) as cell,
        cell.client() as client,
        cell.client() as submitting,
        cell.client() as watching,
    ):
        terms, load = Terms(watching), Load(submitting)
        for _ in range(rounds):
            term = client.cell().term
            time.sleep(1.0)  # A standby has been started again and has caught up.
            began = time.monotonic()
            cell.kill_leader(client)
            took_s.append(terms.after(term)[1] - began)
        load.close()
        in_log = client.cell().jobs_waiting
    took_s.sort()
    p50_s, p99_s = took_s[len(took_s) // 2], took_s[min(len(took_s) - 1, len(took_s) * 99 // 100)]
    return Measured(
        figures={
            "p50_s": round(p50_s, 3),
            "p99_s": round(p99_s, 3),
            "rounds": rounds,
            "accepted": load.accepted,
            "calls_failed": load.failed,
            "jobs_in_log": in_log,
        },
        bars={"p99_s": at_most(round(p99_s, 3), 5)},
        params={"submissions_per_s": _PER_S, "schedulers": 2},
    )
