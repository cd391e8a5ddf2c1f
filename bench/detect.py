"""Time from the death of a node until the log calls it lost, and how often a pause is taken for a death.

Times are of a live cell: agents of simulated nodes are killed and frozen, each a process of its own, and the entry that
records the loss is awaited. False positives are simulated: the real detector on virtual time, with pauses drawn from a
model that the parameters state. Between pauses nothing can go wrong, so they come far more often than in life, and what
is counted for each pause is scaled to a node-day.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from bench._cell import attach, log_argument, measured
from bench.registry import Measured, at_most
from services.health.detector import Detector
from services.health.messages import (
    Beat,
    NodeBack,
    NodeGone,
    NodeKnown,
    NodeSuspect,
    PathHeard,
    Verdict,
)
from services.health.rules import Rules
from services.health.table import Table
from services.runtime import codec
from services.runtime.trial import TrialCell
from simulation.fleet import NodeShape
from statemachines.facts import NodeLost
from statemachines.node import NodeState
from tidemill import Client

_VICTIMS: Final = {"small": 8, "full": 40}
_OTHERS: Final = 100
_KILL_EVERY_S: Final = 0.61
_LOST_WITHIN_S: Final = 60.0
# Many die at once here, which would be an incident.
_BREAKER: Final = "TIDEMILL_HEALTH_BREAKER_LEAST"

_BEAT_MS: Final = 2_000
_BATCH_MS: Final = 100
_DELAY_MS: Final = 50
_HOURS: Final = {"small": 1, "full": 8}
_NODES: Final = 500
_PAUSES_PER_NODE_DAY: Final = 20
_PAUSE_MEAN_MS: Final = 600
_PAUSE_EVERY_MS: Final = 60_000
_LONG_PAUSE_MS: Final = 8_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    log_argument(parser)
    parser.add_argument("--seed", type=int, default=1, help="of the simulated pauses")
    parser.add_argument("--simulated-only", action="store_true", help="leave out the live cell")


def run(options: argparse.Namespace) -> Measured:
    """The pauses, then the deaths."""
    pauses = _Pauses(options.seed, mean_ms=_PAUSE_MEAN_MS).run(_HOURS[options.scale])
    long = _Pauses(options.seed, mean_ms=0).run(_HOURS[options.scale])
    per_node_day = pauses.lost / pauses.count * _PAUSES_PER_NODE_DAY
    figures: dict[str, object] = {
        "false_positives_per_node_day": per_node_day,
        # What cannot be ruled out with 95 % certainty by so many pauses.
        "false_positives_per_node_day_below": float(
            f"{(pauses.lost + 3) / pauses.count * _PAUSES_PER_NODE_DAY:.2g}"
        ),
        "pauses": pauses.count,
        "pauses_of_8_s": long.count,
        "pauses_of_8_s_lost": long.lost,
    }
    bars = {
        "false_positives_per_node_day": at_most(per_node_day, 3.8e-4),
        "pauses_of_8_s_lost": at_most(long.lost, 0),
    }
    if not options.simulated_only:
        took_s = _live(options.log, _VICTIMS[options.scale])
        p50_s = round(took_s[len(took_s) // 2], 2)
        p99_s = round(took_s[min(len(took_s) - 1, len(took_s) * 99 // 100)], 2)
        figures |= {"lost_p50_s": p50_s, "lost_p99_s": p99_s, "deaths": len(took_s)}
        bars |= {"lost_p50_s": at_most(p50_s, 10), "lost_p99_s": at_most(p99_s, 20)}
    rules = Rules()
    return Measured(
        figures,
        bars,
        params={
            "lost": "live: agents killed and frozen in turn",
            "false_positives": "simulated: the detector on virtual time",
            "suspect_after_ms": rules.suspect_after_ms,
            "lost_after_ms": rules.lost_after_ms,
            "pauses_per_node_day": _PAUSES_PER_NODE_DAY,
            "pause_ms": f"exponential, mean {_PAUSE_MEAN_MS}",
        },
    )


# --- live


class _Losses:
    """When each node's loss was seen in the log, on this machine's clock."""

    def __init__(self, client: Client) -> None:
        self.seen: dict[str, float] = {}
        self._client = client
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for read in self._client.entries(follow=True):
            entry = codec.decode_entry(read.offset, read.entry.SerializeToString())
            for recorded in entry.facts:
                if isinstance(recorded.fact, NodeLost):
                    self.seen.setdefault(recorded.fact.node, time.monotonic())


def _live(log: str, victims: int) -> list[float]:
    """Seconds from each death to its record, sorted."""
    with _no_breaker(), measured(log) as cell, cell.client() as client, cell.client() as watching:
        attach(cell, [NodeShape(f"other-{i:03d}", 8_000, 16_384) for i in range(_OTHERS)])
        names = [f"victim-{i:02d}" for i in range(victims)]
        pids = {name: _agent(cell, name) for name in names}
        cell.until(
            "the victims to join",
            lambda: client.cell().nodes_ready == _OTHERS + victims,
            within_s=300,
        )
        losses, died = _Losses(watching), dict[str, float]()
        time.sleep(2 * _BEAT_MS / 1000)
        for number, name in enumerate(names):
            os.kill(pids[name], signal.SIGSTOP if number % 2 else signal.SIGKILL)
            died[name] = time.monotonic()
            time.sleep(_KILL_EVERY_S)  # Deaths at many phases of the beat.
        cell.until(
            "all of them to be lost",
            lambda: losses.seen.keys() >= died.keys(),
            within_s=_LOST_WITHIN_S,
        )
        for name in names:
            _thaw(pids[name])
        assert losses.seen.keys() == died.keys(), "a node was lost that lives"
        return sorted(losses.seen[name] - died[name] for name in names)


def _agent(cell: TrialCell, name: str) -> int:
    file = cell.directory / f"{name}.json"
    file.write_bytes(msgspec.json.encode([NodeShape(name, 8_000, 16_384)]))
    return cell.spawn(
        name, "simulation.fleet", "--gateway", cell.address, "--token-file", str(cell.node_token), "--nodes", str(file)
    ).pid  # fmt: skip


def _thaw(pid: int) -> None:
    """So that it can be ended in good order; a killed one is still a child of ours."""
    os.kill(pid, signal.SIGCONT)


@contextmanager
def _no_breaker() -> Iterator[None]:
    os.environ[_BREAKER] = "1000"
    try:
        yield
    finally:
        del os.environ[_BREAKER]


# --- simulated


class _Node:
    """A node on virtual time; its next pause is from `pause_ms` to `thaw_ms`."""

    __slots__ = ("incarnation", "name", "pause_ms", "state", "thaw_ms")

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 1
        self.state = NodeState.READY
        self.pause_ms = self.thaw_ms = 0


class _Pauses:
    """The detector and a fleet whose nodes pause now and then. `mean_ms` 0: each pause lasts exactly eight seconds."""

    def __init__(self, seed: int, *, mean_ms: int) -> None:
        self.count = 0
        self.lost = 0
        self._dice = random.Random(seed)
        self._mean_ms = mean_ms
        self._now_ms = 0
        # Pauses that fall together are an incident, which would hide what is counted here.
        rules = Rules(breaker_least=_NODES + 1)
        self._detector = Detector(rules, Table(()), 0)
        self._nodes = [_Node(f"n{i}") for i in range(_NODES)]
        self._by_name = {node.name: node for node in self._nodes}
        self._beats: list[tuple[int, int]] = []
        for number, node in enumerate(self._nodes):
            self._next_pause(node, 0)
            self._tell(node)
            heapq.heappush(self._beats, (self._dice.randrange(_BEAT_MS), number))

    def run(self, hours: int) -> _Pauses:
        """Let time pass, batch by batch."""
        while self._now_ms < hours * 3_600_000:
            self._now_ms += _BATCH_MS
            self._detector.observe(PathHeard(), self._now_ms)
            while self._beats[0][0] <= self._now_ms:
                due_ms, number = heapq.heappop(self._beats)
                self._beat(due_ms, number)
            for verdict in self._detector.tick(self._now_ms):
                self._record(verdict)
        return self

    def _beat(self, due_ms: int, number: int) -> None:
        """A beat is due, or was while the node paused: then it leaves when it thaws, and says how late."""
        node = self._nodes[number]
        sent_ms = due_ms
        if node.pause_ms <= due_ms < node.thaw_ms:
            sent_ms = node.thaw_ms
            if sent_ms > self._now_ms:
                node.pause_ms = due_ms  # What is left of it.
                heapq.heappush(self._beats, (sent_ms + self._dice.randrange(_DELAY_MS), number))
                return
        if node.thaw_ms <= sent_ms:
            self._next_pause(node, sent_ms)
        if node.state is NodeState.LOST:  # It joins again, as its agent would.
            node.incarnation, node.state = node.incarnation + 1, NodeState.READY
            self._tell(node)
        for verdict in self._detector.observe(Beat(node.name, node.incarnation, 0), self._now_ms):
            self._record(verdict)
        heapq.heappush(self._beats, (sent_ms + _BEAT_MS + self._dice.randrange(_DELAY_MS), number))

    def _next_pause(self, node: _Node, now_ms: int) -> None:
        self.count += now_ms > 0
        node.pause_ms = now_ms + round(self._dice.expovariate(1 / _PAUSE_EVERY_MS)) + 2 * _BEAT_MS
        lasts_ms = self._dice.expovariate(1 / self._mean_ms) if self._mean_ms else _LONG_PAUSE_MS
        node.thaw_ms = node.pause_ms + round(lasts_ms)

    def _record(self, verdict: Verdict) -> None:
        match verdict:
            case NodeSuspect(node=name):
                self._by_name[name].state = NodeState.SUSPECT
            case NodeBack(node=name):
                self._by_name[name].state = NodeState.READY
            case NodeGone(node=name):
                self.lost += 1
                self._by_name[name].state = NodeState.LOST
            case _:
                return
        self._tell(self._by_name[name])

    def _tell(self, node: _Node) -> None:
        known = NodeKnown(node.name, node.incarnation, node.state)
        self._detector.observe(known, self._now_ms)
