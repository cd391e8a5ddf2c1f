"""The lifecycle of a network interface of a node. One of several down leaves a node usable for jobs that allow it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import unique
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from statemachines.facts import NicDegraded, NicFact, NicFaulted, NicRecovered
from statemachines.lifecycle import Word, next_state
from statemachines.values import NicSpec, Reason


@unique
class NicState(Word):
    """How an interface does."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAULTY = "faulty"


LIFECYCLE: Final[Mapping[tuple[NicState, type], NicState]] = {
    (NicState.HEALTHY, NicDegraded): NicState.DEGRADED,
    (NicState.HEALTHY, NicFaulted): NicState.FAULTY,
    (NicState.DEGRADED, NicFaulted): NicState.FAULTY,
    (NicState.DEGRADED, NicRecovered): NicState.HEALTHY,
    (NicState.FAULTY, NicRecovered): NicState.HEALTHY,
    (NicState.FAULTY, NicDegraded): NicState.DEGRADED,
}


class Nic(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One interface of a node."""

    spec: NicSpec
    state: NicState = NicState.HEALTHY
    reason: Reason | None = None


def advance(nic: Nic, fact: NicFact) -> Nic:
    """Apply one recorded fact; raises IllegalTransition."""
    state = next_state(LIFECYCLE, nic.state, fact, "a nic of", fact.node)
    match fact:
        case NicDegraded(reason=reason) | NicFaulted(reason=reason):
            return replace(nic, state=state, reason=reason)
        case NicRecovered():
            return replace(nic, state=state, reason=None)
        case _:
            assert_never(fact)
