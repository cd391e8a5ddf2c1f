"""The lifecycle of a job: what was asked, from admission to its end. Never looks at attempts, runs or nodes.

AttemptEnded carries what becomes of the job (`next`), so an ended attempt and its consequence are one fact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import unique
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from statemachines.facts import (
    AttemptEnded,
    AttemptStarted,
    AttemptStopping,
    CheckpointSaved,
    GangPlaced,
    JobAdmitted,
    JobCancelled,
    JobFact,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobWaiting,
)
from statemachines.lifecycle import IllegalTransition, Word
from statemachines.values import Cause, JobId, JobNext, JobSpec, Outcome, Reason


@unique
class JobState(Word):
    """Where a job is. The last three are ends."""

    QUEUED = "queued"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE: Final = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
ENDED: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

# AttemptEnded says which of these.
_AFTER_ATTEMPT: Final = frozenset(
    {JobState.QUEUED, JobState.HELD, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
)
LIFECYCLE: Final[Mapping[tuple[JobState, type], frozenset[JobState]]] = {
    (JobState.QUEUED, JobWaiting): frozenset({JobState.QUEUED}),
    (JobState.QUEUED, JobHeld): frozenset({JobState.HELD}),
    (JobState.QUEUED, JobCancelled): frozenset({JobState.CANCELLED}),
    (JobState.QUEUED, GangPlaced): frozenset({JobState.STARTING}),
    (JobState.HELD, JobReleased): frozenset({JobState.QUEUED}),
    (JobState.HELD, JobRequeued): frozenset({JobState.QUEUED}),
    (JobState.HELD, JobCancelled): frozenset({JobState.CANCELLED}),
    (JobState.STARTING, AttemptStarted): frozenset({JobState.RUNNING}),
    (JobState.STARTING, AttemptStopping): frozenset({JobState.STOPPING}),
    (JobState.STARTING, CheckpointSaved): frozenset({JobState.STARTING}),
    (JobState.STARTING, AttemptEnded): _AFTER_ATTEMPT,
    (JobState.RUNNING, AttemptStopping): frozenset({JobState.STOPPING}),
    (JobState.RUNNING, CheckpointSaved): frozenset({JobState.RUNNING}),
    (JobState.RUNNING, AttemptEnded): _AFTER_ATTEMPT,
    # Waiting: for proof that the old runs are dead.
    (JobState.STOPPING, JobWaiting): frozenset({JobState.STOPPING}),
    # Again: a cancel overrides a requeue, a shorter deadline a longer one.
    (JobState.STOPPING, AttemptStopping): frozenset({JobState.STOPPING}),
    (JobState.STOPPING, CheckpointSaved): frozenset({JobState.STOPPING}),
    (JobState.STOPPING, AttemptEnded): _AFTER_ATTEMPT,
    (JobState.SUCCEEDED, JobRequeued): frozenset({JobState.QUEUED}),
    (JobState.FAILED, JobRequeued): frozenset({JobState.QUEUED}),
    (JobState.CANCELLED, JobRequeued): frozenset({JobState.QUEUED}),
}
_AFTER: Final[Mapping[JobNext, JobState]] = {
    JobNext.QUEUED: JobState.QUEUED,
    JobNext.HELD: JobState.HELD,
    JobNext.SUCCEEDED: JobState.SUCCEEDED,
    JobNext.FAILED: JobState.FAILED,
    JobNext.CANCELLED: JobState.CANCELLED,
}
# Ends that were asked for say nothing against the program or its nodes: they use up no retries.
_BLAMELESS: Final = frozenset(
    {Cause.CANCELLED, Cause.HELD, Cause.REQUEUED, Cause.DRAINED, Cause.PREEMPTED}
)
# Reading a member off its enum is slow enough to see in the fold.
_STARTING: Final = JobState.STARTING
_RUNNING: Final = JobState.RUNNING
_QUEUED_NEXT: Final = JobNext.QUEUED
_SUCCEEDED: Final = Outcome.SUCCEEDED


class Job(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was asked, and where it is.

    `attempt` is the current or last attempt, 0 before the first. `failed` counts attempts that ended badly and not by
    hardware, `stalled` those without a new durable checkpoint in between. `queued_at_ms` is when it last began to wait.
    """

    id: JobId
    number: int
    spec: JobSpec
    by: str
    state: JobState
    attempt: int
    admitted_at_ms: int
    queued_at_ms: int
    changed_at_ms: int
    not_before_ms: int
    reason: Reason | None
    reason_at_ms: int
    failed: int
    stalled: int
    durable_step: int
    outcome: str


def admit(fact: JobAdmitted, *, job: JobId, number: int, by: str, at_ms: int) -> Job:
    """The job as it begins: queued, or held when it asked for that."""
    held = fact.spec.held
    return Job(
        job, number, fact.spec, by, JobState.HELD if held else JobState.QUEUED, 0,
        at_ms, at_ms, at_ms, 0, Reason("submitted_held", "submitted held: release it to let it run") if held else None,
        at_ms, 0, 0, -1, "",
    )  # fmt: skip


def advance(job: Job, fact: JobFact, at_ms: int) -> Job:
    """Apply one recorded fact about this job; raises IllegalTransition."""
    kind = type(fact)
    if (job.state, kind) not in LIFECYCLE:
        raise _illegal(job, fact)
    return _RULES[kind](job, fact, at_ms)


def _placed(job: Job, fact: GangPlaced, at_ms: int) -> Job:
    if fact.attempt != job.attempt + 1:
        raise _illegal(job, fact)
    return replace(
        job,
        state=_STARTING,
        attempt=fact.attempt,
        changed_at_ms=at_ms,
        reason=None,
        reason_at_ms=at_ms,
    )


def _stopping(job: Job, fact: AttemptStopping, at_ms: int) -> Job:
    if fact.attempt != job.attempt:
        raise _illegal(job, fact)
    return replace(
        job,
        state=JobState.STOPPING,
        changed_at_ms=at_ms,
        reason=Reason(f"stopping_{fact.cause}", fact.message),
        reason_at_ms=at_ms,
    )


def _started(job: Job, fact: AttemptStarted, at_ms: int) -> Job:
    if fact.attempt != job.attempt:
        raise _illegal(job, fact)
    return replace(job, state=_RUNNING, changed_at_ms=at_ms)


def _saved(job: Job, fact: CheckpointSaved, _at_ms: int) -> Job:
    if fact.attempt != job.attempt or fact.step <= job.durable_step:
        raise _illegal(job, fact)
    return replace(job, durable_step=fact.step, stalled=0)


def _ended(job: Job, fact: AttemptEnded, at_ms: int) -> Job:
    if fact.attempt != job.attempt:
        raise _illegal(job, fact)
    bad = fact.outcome is not _SUCCEEDED and fact.cause not in _BLAMELESS
    blamed = bad and not fact.spared
    waits = fact.next is _QUEUED_NEXT
    return replace(
        job,
        state=_AFTER[fact.next],
        changed_at_ms=at_ms,
        queued_at_ms=at_ms if waits else job.queued_at_ms,
        not_before_ms=fact.not_before_ms if waits else 0,
        reason=Reason(str(fact.cause), fact.message),
        reason_at_ms=at_ms,
        failed=job.failed + blamed,
        stalled=job.stalled + blamed,
        outcome=str(fact.outcome),
    )


def _waiting(job: Job, fact: JobWaiting, at_ms: int) -> Job:
    """A reason is as old as its code."""
    before, reason = job.reason, fact.reason
    since = job.reason_at_ms if before and before.code == reason.code else at_ms
    return replace(job, reason=reason, reason_at_ms=since)


def _held(job: Job, fact: JobHeld, at_ms: int) -> Job:
    return replace(
        job, state=JobState.HELD, changed_at_ms=at_ms, reason=fact.reason, reason_at_ms=at_ms
    )


def _released(job: Job, _fact: JobReleased, at_ms: int) -> Job:
    return _queued(job, at_ms, not_before_ms=0)


def _requeued(job: Job, fact: JobRequeued, at_ms: int) -> Job:
    return _queued(job, at_ms, not_before_ms=fact.not_before_ms)


def _cancelled(job: Job, fact: JobCancelled, at_ms: int) -> Job:
    return replace(
        job,
        state=JobState.CANCELLED,
        changed_at_ms=at_ms,
        reason=Reason("cancelled", fact.message),
        reason_at_ms=at_ms,
        outcome="",
    )


def _queued(job: Job, at_ms: int, *, not_before_ms: int) -> Job:
    """A person let it run again: earlier failures no longer count against it."""
    return replace(
        job,
        state=JobState.QUEUED,
        changed_at_ms=at_ms,
        queued_at_ms=at_ms,
        not_before_ms=not_before_ms,
        reason=None,
        reason_at_ms=at_ms,
        failed=0,
        stalled=0,
    )


def _illegal(job: Job, fact: JobFact) -> IllegalTransition:
    return IllegalTransition(
        f"job {job.id} (attempt {job.attempt}, durable step {job.durable_step})", job.state, fact
    )


# One rule a fact, found by its type: to match the classes one after the other costs more than all the rest.
_RULES: Final[Mapping[type, Callable[[Job, Any, int], Job]]] = {
    GangPlaced: _placed,
    AttemptStarted: _started,
    AttemptStopping: _stopping,
    AttemptEnded: _ended,
    CheckpointSaved: _saved,
    JobWaiting: _waiting,
    JobHeld: _held,
    JobReleased: _released,
    JobRequeued: _requeued,
    JobCancelled: _cancelled,
}


def restart_from(job: Job, step: int) -> Job:
    """Its newest usable checkpoint is now `step` (-1: none): one was condemned or is gone."""
    return replace(job, durable_step=step)
