"""The lifecycle of an attempt: one try of the whole gang. Counts its runs so that no one has to scan them.

Never decides: that an attempt may end (all runs ended, or the rest lost and the job overlap-safe) is asserted here,
and chosen by the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import unique
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from statemachines.facts import (
    AttemptEnded,
    AttemptFact,
    AttemptResumed,
    AttemptStarted,
    AttemptStopping,
    GangPlaced,
    NodeLost,
    ResumeMismatched,
    RunEnded,
    RunStarted,
    SaveAcknowledged,
    SaveAsked,
    TrainingFinished,
)
from statemachines.lifecycle import IllegalTransition, Word
from statemachines.values import Cause, JobId, JobNext, Outcome, Reason, ResumePoint, RunId


@unique
class AttemptState(Word):
    """Where an attempt is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


_S: Final = AttemptState
LIFECYCLE: Final[Mapping[tuple[AttemptState, type], AttemptState]] = {
    (_S.STARTING, RunStarted): _S.STARTING,
    (_S.STARTING, RunEnded): _S.STARTING,
    (_S.STARTING, NodeLost): _S.STARTING,
    (_S.STARTING, AttemptStarted): _S.RUNNING,
    (_S.STARTING, AttemptStopping): _S.STOPPING,
    (_S.STARTING, AttemptEnded): _S.ENDED,
    (_S.STARTING, TrainingFinished): _S.STARTING,
    (_S.STARTING, AttemptResumed): _S.STARTING,
    (_S.STARTING, ResumeMismatched): _S.STARTING,
    (_S.RUNNING, RunEnded): _S.RUNNING,
    (_S.RUNNING, NodeLost): _S.RUNNING,
    (_S.RUNNING, SaveAsked): _S.RUNNING,
    (_S.RUNNING, SaveAcknowledged): _S.RUNNING,
    (_S.RUNNING, TrainingFinished): _S.RUNNING,
    (_S.RUNNING, AttemptResumed): _S.RUNNING,
    (_S.RUNNING, ResumeMismatched): _S.RUNNING,
    (_S.RUNNING, AttemptStopping): _S.STOPPING,
    (_S.RUNNING, AttemptEnded): _S.ENDED,
    (_S.STOPPING, RunStarted): _S.STOPPING,
    (_S.STOPPING, RunEnded): _S.STOPPING,
    (_S.STOPPING, NodeLost): _S.STOPPING,
    (_S.STOPPING, AttemptStopping): _S.STOPPING,
    (_S.STOPPING, TrainingFinished): _S.STOPPING,
    (_S.STOPPING, AttemptEnded): _S.ENDED,
    # An overlap-safe job went on without the lost runs; their ends come late.
    (_S.ENDED, RunEnded): _S.ENDED,
}


# Reading a member off its enum is slow enough to see in the fold.
_RUNNING: Final = _S.RUNNING
_ENDED: Final = _S.ENDED


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One try of the whole gang.

    `started`, `open` and `lost` count its runs: those that ever started, those that have not ended, and those among
    the open ones whose node is lost. `ask` numbers the newest early save that was asked for, 0 for none;
    `ask_step` is rank 0's answer, 0 before it. Unset times are 0, unset steps -1.
    """

    job: JobId
    number: int
    state: AttemptState
    runs: tuple[RunId, ...]
    resume: ResumePoint
    master_port: int
    why: Reason
    placed_at_ms: int
    started_at_ms: int = 0
    ended_at_ms: int = 0
    started: int = 0
    open: int = 0
    lost: int = 0
    resumed_step: int = -1
    finished_step: int = -1
    ask: int = 0
    ask_step: int = 0
    ask_deadline_ms: int = 0
    ask_cause: Cause | None = None
    ask_next: JobNext | None = None
    stop_cause: Cause | None = None
    stop_message: str = ""
    stop_next: JobNext | None = None
    stop_deadline_ms: int = 0
    outcome: Outcome | None = None
    cause: Cause | None = None
    message: str = ""


def place(fact: GangPlaced, at_ms: int) -> Attempt:
    """The attempt as it begins."""
    runs = tuple([placement.run for placement in fact.placements])
    return Attempt(
        fact.job, fact.attempt, _S.STARTING, runs, fact.resume, fact.master_port, fact.why, at_ms, open=len(runs)
    )  # fmt: skip


def advance(attempt: Attempt, fact: AttemptFact, at_ms: int, *, lost: int = 0) -> Attempt:
    """Apply one recorded fact; raises IllegalTransition.

    `lost` counts lost runs: with NodeLost those that became so, with RunEnded 1 if the run that ended was.
    """
    kind = type(fact)
    if (attempt.state, kind) not in LIFECYCLE:
        raise _illegal(attempt, fact)
    return _RULES[kind](attempt, fact, at_ms, lost)


def _run_started(attempt: Attempt, _fact: RunStarted, _at_ms: int, _lost: int) -> Attempt:
    return replace(attempt, started=attempt.started + 1)


def _run_ended(attempt: Attempt, _fact: RunEnded, _at_ms: int, lost: int) -> Attempt:
    return replace(attempt, open=attempt.open - 1, lost=attempt.lost - lost)


def _node_lost(attempt: Attempt, _fact: NodeLost, _at_ms: int, lost: int) -> Attempt:
    return replace(attempt, lost=attempt.lost + lost)


def _started(attempt: Attempt, fact: AttemptStarted, at_ms: int, _lost: int) -> Attempt:
    if attempt.started != len(attempt.runs):
        raise _illegal(attempt, fact)
    return replace(attempt, state=_RUNNING, started_at_ms=at_ms)


def _ended(attempt: Attempt, fact: AttemptEnded, at_ms: int, _lost: int) -> Attempt:
    if attempt.open != attempt.lost:
        raise _illegal(attempt, fact)
    return replace(
        attempt,
        state=_ENDED,
        ended_at_ms=at_ms,
        outcome=fact.outcome,
        cause=fact.cause,
        message=fact.message,
    )


def _stopping(attempt: Attempt, fact: AttemptStopping, _at_ms: int, _lost: int) -> Attempt:
    return replace(
        attempt,
        state=_S.STOPPING,
        stop_cause=fact.cause,
        stop_message=fact.message,
        stop_next=fact.next,
        stop_deadline_ms=fact.deadline_ms,
    )


def _asked(attempt: Attempt, fact: SaveAsked, _at_ms: int, _lost: int) -> Attempt:
    if fact.ask != attempt.ask + 1:
        raise _illegal(attempt, fact)
    return replace(
        attempt,
        ask=fact.ask,
        ask_step=0,
        ask_deadline_ms=fact.deadline_ms,
        ask_cause=fact.cause,
        ask_next=fact.next,
    )


def _acknowledged(attempt: Attempt, fact: SaveAcknowledged, _at_ms: int, _lost: int) -> Attempt:
    if fact.ask != attempt.ask or attempt.ask_step != 0:
        raise _illegal(attempt, fact)
    return replace(attempt, ask_step=fact.at_step)


def _finished(attempt: Attempt, fact: TrainingFinished, _at_ms: int, _lost: int) -> Attempt:
    return replace(attempt, finished_step=fact.step)


def _resumed(
    attempt: Attempt, fact: AttemptResumed | ResumeMismatched, _at_ms: int, _lost: int
) -> Attempt:
    return replace(attempt, resumed_step=fact.step)


def _illegal(attempt: Attempt, fact: AttemptFact) -> IllegalTransition:
    return IllegalTransition(
        f"attempt {attempt.number} of job {attempt.job} "
        f"({attempt.started} started, {attempt.open} open, {attempt.lost} lost)",
        attempt.state,
        fact,
    )


# One rule a fact, found by its type: to match the classes one after the other costs more than all the rest.
_RULES: Final[Mapping[type, Callable[[Attempt, Any, int, int], Attempt]]] = {
    RunStarted: _run_started,
    RunEnded: _run_ended,
    NodeLost: _node_lost,
    AttemptStarted: _started,
    AttemptStopping: _stopping,
    AttemptEnded: _ended,
    SaveAsked: _asked,
    SaveAcknowledged: _acknowledged,
    TrainingFinished: _finished,
    AttemptResumed: _resumed,
    ResumeMismatched: _resumed,
}
