"""The lifecycle of a run: one member of one attempt on one node. It holds devices until it has ended, lost or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import unique
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from statemachines.facts import GangPlaced, NodeLost, RunEnded, RunFact, RunStarted
from statemachines.lifecycle import IllegalTransition, Word
from statemachines.values import Evidence, Grant, JobId, NodeId, Placement, RunId


@unique
class RunState(Word):
    """Where a run is. Lost: its node is, so it may or may not still live."""

    PLACED = "placed"
    RUNNING = "running"
    LOST = "lost"
    ENDED = "ended"


LIFECYCLE: Final[Mapping[tuple[RunState, type], RunState]] = {
    (RunState.PLACED, RunStarted): RunState.RUNNING,
    (RunState.PLACED, NodeLost): RunState.LOST,
    (RunState.PLACED, RunEnded): RunState.ENDED,
    (RunState.RUNNING, NodeLost): RunState.LOST,
    (RunState.RUNNING, RunEnded): RunState.ENDED,
    (RunState.LOST, NodeLost): RunState.LOST,
    (RunState.LOST, RunEnded): RunState.ENDED,
}


# Reading a member off its enum is slow enough to see in the fold.
_RUNNING: Final = RunState.RUNNING
_ENDED: Final = RunState.ENDED


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One member of one attempt on one node; `devices` are what it was granted."""

    id: RunId
    job: JobId
    attempt: int
    rank: int
    role: str
    node: NodeId
    devices: tuple[Grant, ...]
    cpu_milli: int
    memory_mib: int
    state: RunState
    placed_at_ms: int
    started_at_ms: int = 0
    lost_at_ms: int = 0
    ended_at_ms: int = 0
    exit_code: int = 0
    signal: int = 0
    evidence: Evidence | None = None
    message: str = ""


def place(fact: GangPlaced, placement: Placement, at_ms: int) -> Run:
    """The run as it begins."""
    return Run(
        placement.run, fact.job, fact.attempt, placement.rank, placement.role, placement.node, placement.devices,
        placement.cpu_milli, placement.memory_mib, RunState.PLACED, at_ms,
    )  # fmt: skip


def advance(run: Run, fact: RunFact, at_ms: int) -> Run:
    """Apply one recorded fact; raises IllegalTransition."""
    kind = type(fact)
    if (run.state, kind) not in LIFECYCLE:
        raise IllegalTransition(f"run {run.id}", run.state, fact)
    return _RULES[kind](run, fact, at_ms)


def _started(run: Run, _fact: RunStarted, at_ms: int) -> Run:
    return replace(run, state=_RUNNING, started_at_ms=at_ms)


def _ended(run: Run, fact: RunEnded, at_ms: int) -> Run:
    return replace(
        run,
        state=_ENDED,
        ended_at_ms=at_ms,
        exit_code=fact.exit_code,
        signal=fact.signal,
        evidence=fact.evidence,
        message=fact.message,
    )


def _lost(run: Run, _fact: NodeLost, at_ms: int) -> Run:
    return replace(run, state=RunState.LOST, lost_at_ms=run.lost_at_ms or at_ms)


# One rule a fact, found by its type: to match the classes one after the other costs more than all the rest.
_RULES: Final[Mapping[type, Callable[[Run, Any, int], Run]]] = {
    RunStarted: _started,
    RunEnded: _ended,
    NodeLost: _lost,
}
