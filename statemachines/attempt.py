"""The lifecycle of an attempt: one try of the whole gang. Counts its runs so that no one has to scan them.

Never decides: that an attempt may end (all runs ended, or the rest lost and the job overlap-safe) is asserted here,
and chosen by the leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import unique
from typing import Final, assert_never

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


def advance(  # noqa: C901 - one case a fact
    attempt: Attempt, fact: AttemptFact, at_ms: int, *, lost: int = 0, was_lost: bool = False
) -> Attempt:
    """Apply one recorded fact; raises IllegalTransition.

    With NodeLost, `lost` says how many of its open runs became lost; with RunEnded, `was_lost` says whether that run
    was lost before.
    """
    state = LIFECYCLE.get((attempt.state, type(fact)))
    if state is None:
        raise _illegal(attempt, fact)
    match fact:
        case RunStarted():
            return replace(attempt, started=attempt.started + 1)
        case RunEnded():
            return replace(attempt, open=attempt.open - 1, lost=attempt.lost - was_lost)
        case AttemptStarted():
            if attempt.started != len(attempt.runs):
                raise _illegal(attempt, fact)
            return replace(attempt, state=state, started_at_ms=at_ms)
        case AttemptEnded():
            if attempt.open != attempt.lost:
                raise _illegal(attempt, fact)
            return _ended(attempt, fact, at_ms)
        case AttemptStopping():
            return _stopping(attempt, fact)
        case NodeLost():
            return replace(attempt, lost=attempt.lost + lost)
        case SaveAsked():
            return _asked(attempt, fact)
        case SaveAcknowledged(ask=ask, at_step=at_step):
            if ask != attempt.ask or attempt.ask_step != 0:
                raise _illegal(attempt, fact)
            return replace(attempt, ask_step=at_step)
        case TrainingFinished(step=step):
            return replace(attempt, finished_step=step)
        case AttemptResumed(step=step) | ResumeMismatched(step=step):
            return replace(attempt, resumed_step=step)
        case _:
            assert_never(fact)


def _ended(attempt: Attempt, fact: AttemptEnded, at_ms: int) -> Attempt:
    return replace(
        attempt,
        state=_S.ENDED,
        ended_at_ms=at_ms,
        outcome=fact.outcome,
        cause=fact.cause,
        message=fact.message,
    )


def _stopping(attempt: Attempt, fact: AttemptStopping) -> Attempt:
    return replace(
        attempt,
        state=_S.STOPPING,
        stop_cause=fact.cause,
        stop_message=fact.message,
        stop_next=fact.next,
        stop_deadline_ms=fact.deadline_ms,
    )


def _asked(attempt: Attempt, fact: SaveAsked) -> Attempt:
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


def _illegal(attempt: Attempt, fact: AttemptFact) -> IllegalTransition:
    return IllegalTransition(
        f"attempt {attempt.number} of job {attempt.job} "
        f"({attempt.started} started, {attempt.open} open, {attempt.lost} lost)",
        attempt.state,
        fact,
    )
