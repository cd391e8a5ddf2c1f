"""Cancel, hold, release, requeue: what each does to a job in each state. A wish that is true already is granted.

One that names an array goes to every element that it is legal for, and is refused when there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from services.scheduler import attempts
from services.scheduler.answers import RefusedError
from services.scheduler.arrays import Arrays
from services.scheduler.draft import Draft
from services.scheduler.submissions import check_queue
from statemachines.attempt import Attempt, AttemptState
from statemachines.cluster import Cluster
from statemachines.facts import JobCancelled, JobHeld, JobReleased, JobRequeued
from statemachines.job import ENDED, Job, JobState
from statemachines.values import Cause, JobNext, Reason
from tidemill.v1 import requests_pb2

MESSAGE_CHARS: Final = 1024
# What a stop that is under way may still be turned into.
_OPEN_ENDS: Final = frozenset({JobNext.QUEUED, JobNext.HELD})


def decide(draft: Draft, arrays: Arrays, said: Any) -> None:
    """Grant it for the job, or for the elements of the array, that it names; raises RefusedError."""
    named = arrays.named(said.job)
    if not named:
        raise RefusedError(
            "unknown_job",
            f"there is no job {said.job[:64]}; one that ended a while ago has left, its history is in the log",
            field="job",
        )
    handler = _HANDLERS[type(said)]
    refusal: RefusedError | None = None
    granted = False
    for job in named:
        try:
            with draft.whole():
                handler(draft, draft.cluster.jobs[job], said)
            granted = True
        except RefusedError as error:
            refusal = error
    if not granted and refusal is not None:
        raise refusal


def _bad_state(job: Job, wish: str, *, instead: str = "") -> RefusedError:
    message = f"job {job.number} ({job.id}) is {job.state}: it cannot be {wish}"
    return RefusedError("bad_state", f"{message}; {instead}" if instead else message, field="job")


def _live(cluster: Cluster, job: Job) -> Attempt:
    attempt = attempts.live(cluster, job.id)
    assert attempt is not None, f"job {job.id} is {job.state} without an attempt"
    return attempt


def _words(who: str, did: str, message: str) -> str:
    said = message[:MESSAGE_CHARS]
    return f"{did} by {who}: {said}" if said else f"{did} by {who}"


def _cancel(draft: Draft, job: Job, said: requests_pb2.CancelJob) -> None:
    message = _words(draft.by, "cancelled", said.message)
    match job.state:
        case JobState.QUEUED | JobState.HELD:
            draft.record(JobCancelled(job.id, message))
        case JobState.STARTING | JobState.RUNNING | JobState.STOPPING:
            attempt = _live(draft.cluster, job)
            if attempt.stop_next is not JobNext.CANCELLED:
                attempts.stop(draft, attempt, Cause.CANCELLED, message, JobNext.CANCELLED)
        case JobState.CANCELLED:
            pass
        case JobState.SUCCEEDED | JobState.FAILED:
            raise _bad_state(job, "cancelled")


def _hold(draft: Draft, job: Job, said: requests_pb2.HoldJob) -> None:
    message = _words(draft.by, "held", said.message)
    match job.state:
        case JobState.QUEUED:
            draft.record(JobHeld(job.id, Reason("held_by_user", message)))
        case JobState.HELD:
            pass
        case JobState.STARTING | JobState.RUNNING:
            attempts.stop(draft, _live(draft.cluster, job), Cause.HELD, message, JobNext.HELD)
        case JobState.STOPPING:
            attempt = _live(draft.cluster, job)
            _still_open(job, attempt, "held")
            # A hold for want of progress may yet fall away.
            if attempt.stop_cause is not Cause.HELD:
                attempts.stop(draft, attempt, Cause.HELD, message, JobNext.HELD)
        case JobState.SUCCEEDED | JobState.FAILED | JobState.CANCELLED:
            raise _bad_state(job, "held")


def _still_open(job: Job, attempt: Attempt, wish: str) -> None:
    if attempt.stop_next not in _OPEN_ENDS:
        raise _bad_state(job, wish, instead=f"once stopped it will be {attempt.stop_next}")


def _release(draft: Draft, job: Job, _said: requests_pb2.ReleaseJob) -> None:
    if job.state is not JobState.HELD:
        instead = ""
        if job.state is JobState.STOPPING:
            instead = "release it once it has stopped"
        raise _bad_state(job, "released", instead=instead)
    draft.record(JobReleased(job.id))


def _requeue(draft: Draft, job: Job, said: requests_pb2.RequeueJob) -> None:
    message = _words(draft.by, "requeued", said.message)
    match job.state:
        case JobState.QUEUED:
            raise _bad_state(job, "requeued", instead="it waits already")
        case JobState.HELD:
            draft.record(JobRequeued(job.id, 0))
        case JobState.STARTING | JobState.RUNNING:
            _requeue_live(draft, _live(draft.cluster, job), said, message)
        case JobState.STOPPING:
            attempt = _live(draft.cluster, job)
            _still_open(job, attempt, "requeued")
            if attempt.stop_next is not JobNext.QUEUED:
                attempts.stop(draft, attempt, Cause.REQUEUED, message, JobNext.QUEUED)
        case JobState.SUCCEEDED | JobState.FAILED | JobState.CANCELLED:
            assert job.state in ENDED, "it counts against its queue's job limit again"
            check_queue(draft.cluster, job.spec.queue, 1)
            draft.record(JobRequeued(job.id, 0))


def _requeue_live(
    draft: Draft, attempt: Attempt, said: requests_pb2.RequeueJob, message: str
) -> None:
    if not said.save_first or attempt.state is AttemptState.STARTING:
        attempts.stop(draft, attempt, Cause.REQUEUED, message, JobNext.QUEUED)
        return
    if attempts.save_wanted(draft.cluster, attempt):
        return  # It will stop after a save and wait again: what was asked for.
    deadline_ms = draft.now_ms + draft.cluster.policy.save_wait_ms
    attempts.ask_for_save(
        draft, attempt, cause=Cause.REQUEUED, then=JobNext.QUEUED, deadline_ms=deadline_ms
    )


_HANDLERS: Final[dict[type, Callable[[Draft, Job, Any], None]]] = {
    requests_pb2.CancelJob: _cancel,
    requests_pb2.HoldJob: _hold,
    requests_pb2.ReleaseJob: _release,
    requests_pb2.RequeueJob: _requeue,
}
