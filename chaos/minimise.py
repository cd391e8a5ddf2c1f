"""Delta debugging over the faults of a history: the fewest that still break what was broken, by playing it again.

A history is a function of its seed and its setup, so a smaller setup is tried by playing it. What remains cannot lose
any single fault. Bounded by tries, for a person waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from simulation.history import play
from simulation.scenario import Scenario, Setup
from simulation.storage import BrokerFaults

F = TypeVar("F")
TRIES_MAX: Final = 120


def kinds(broken: Sequence[str]) -> frozenset[str]:
    """What kinds of promise were broken: the invariants' letters, `bug`; else which checks, without what they saw.

    Checks count only alone: they ask for what faults bring about, so a history without the faults breaks some too.
    """
    letters = frozenset(line.partition(":")[0].split(" ")[0] for line in broken) - {"check"}
    return letters or frozenset(line.partition(", saw ")[0] for line in broken)


def minimise(scenario: Scenario, seed: int, found: Setup, broken: Sequence[str]) -> Setup:
    """The smallest setup found that breaks one of the same promises."""
    wanted = kinds(broken)
    tries = 0

    def breaks(setup: Setup) -> bool:
        nonlocal tries
        tries += 1
        return bool(wanted & kinds(play(scenario, seed, setup).verdict.broken))

    best = found
    for calm in (_no_crashes, _well_broker):
        calmer = calm(best)
        if calmer != best and breaks(calmer):
            best = calmer

    def still(plan: Sequence[F]) -> bool:
        return tries < TRIES_MAX and breaks(msgspec.structs.replace(best, plan=tuple(plan)))

    return msgspec.structs.replace(best, plan=tuple(ddmin(best.plan, still)))


def _no_crashes(setup: Setup) -> Setup:
    shape = msgspec.structs.replace(setup.shape, crash_ppm=0)
    return msgspec.structs.replace(setup, shape=shape)


def _well_broker(setup: Setup) -> Setup:
    shape = msgspec.structs.replace(setup.shape, broker=BrokerFaults())
    return msgspec.structs.replace(setup, shape=shape)


def ddmin(items: Sequence[F], holds: Callable[[Sequence[F]], bool]) -> list[F]:
    """A subsequence for which it still holds, and for none without one of its items (Zeller, 2002)."""
    kept, pieces = list(items), 2
    if kept and holds([]):
        return []
    while len(kept) >= 2:
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            without = kept[:start] + kept[start + size :]
            if holds(without):
                kept, pieces = without, max(pieces - 1, 2)
                break
        else:
            if pieces >= len(kept):
                break
            pieces = min(len(kept), 2 * pieces)
    return kept
