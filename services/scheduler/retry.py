"""What becomes of a job after a bad end: another attempt, a hold, or failure; and how long it waits before.

Pure over the job as it was before the end. Bounds are the job's own or, where it gives none, the cell's. What hardware
ended uses up none of them (decision 0026); a job that meets nothing but broken hardware is held all the same.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from planning.restart import broken_by
from services.scheduler import exit_codes
from services.scheduler.exit_codes import Blame
from statemachines.attempt import Attempt
from statemachines.checkpoint import CheckpointState
from statemachines.cluster import ATTEMPTS_KEPT, Cluster
from statemachines.job import Job
from statemachines.values import Cause, JobNext

# Doublings of the first backoff.
DOUBLINGS_MAX: Final = 5
# Ends by hardware in a row without a new durable checkpoint, after which a person looks: as many as the state remembers.
HARDWARE_ENDS_MOST: Final = ATTEMPTS_KEPT
_HARDWARE: Final = frozenset({Cause.NODE_LOST, Cause.DEVICE_FAULT, Cause.NIC_FAULT})
# In the message of a job that is held for want of progress; before it stands what ended the attempt.
_BRAKED: Final = "; held after "
# These hold a job for what a person wants or has to look at, whatever it saves.
_HELD_FOR_OTHERS: Final = frozenset({Cause.HELD, Cause.RESUME_MISMATCH})
# After these the next attempt need not wait: nothing says that it would fail the same way.
_NO_BACKOFF: Final = _HARDWARE | {Cause.HELD, Cause.REQUEUED, Cause.DRAINED, Cause.PREEMPTED}


def consequence(cluster: Cluster, job: Job, blame: Blame, message: str) -> tuple[JobNext, str]:
    """What comes after an attempt that ends badly now, and the message that says so."""
    if blame is Blame.CELL:
        return _after_hardware(cluster, job, message)
    if blame is Blame.PROGRAM and not _may_do_better(cluster, job):
        return JobNext.FAILED, message
    retry, policy = job.spec.retry, cluster.policy
    most = retry.max_attempts or policy.max_attempts
    if most > 0 and job.failed + 1 >= most:
        return JobNext.FAILED, f"{message}; it was the last of {most} attempts that may end badly"
    if _brakes(cluster, job):
        held = f"{job.stalled + 1} bad ends in a row without a new durable checkpoint"
        return JobNext.HELD, f"{message}{_BRAKED}{held}: release it to try again"
    return JobNext.QUEUED, message


def after_stop(cluster: Cluster, attempt: Attempt) -> tuple[JobNext, str]:
    """What comes after an attempt that was stopping, and its message: as decided, but for one that saved since then.

    A job is held for want of a new checkpoint; a trainer that saves when it is told to stop has made one.
    """
    assert attempt.stop_next is not None, "it is stopping"
    job = cluster.jobs[attempt.job]
    braked = attempt.stop_next is JobNext.HELD and attempt.stop_cause not in _HELD_FOR_OTHERS
    saved = attempt.number in _saved_by(cluster, job)
    if braked and saved and not _brakes(cluster, job):
        return JobNext.QUEUED, attempt.stop_message.partition(_BRAKED)[0]
    return attempt.stop_next, attempt.stop_message


def _brakes(cluster: Cluster, job: Job) -> bool:
    """Whether one more bad end is too many without a new checkpoint."""
    most = (
        job.spec.retry.max_attempts_without_progress or cluster.policy.max_attempts_without_progress
    )
    return 0 < most <= job.stalled + 1


def _saved_by(cluster: Cluster, job: Job) -> list[int]:
    """Attempts with a durable checkpoint."""
    return [
        each.attempt
        for each in cluster.checkpoints.get(job.id, ())
        if each.state is CheckpointState.DURABLE
    ]


def spared(cluster: Cluster, attempt: Attempt, cause: Cause) -> bool:
    """Whether an attempt that ends now was ended by hardware, so that nothing counts against its job.

    That a program says so is no proof, unless the cell found the device faulty too.
    """
    if cause is not Cause.DEVICE_FAULT:
        return cause in _HARDWARE
    runs = [cluster.runs[run] for run in attempt.runs]
    claimed = any(exit_codes.suspects_hardware(run) for run in runs)
    return not claimed or bool(broken_by(cluster, replace(attempt, cause=cause)))


def _after_hardware(cluster: Cluster, job: Job, message: str) -> tuple[JobNext, str]:
    if _broken_in_row(cluster, job) + 1 < HARDWARE_ENDS_MOST:
        return JobNext.QUEUED, message
    held = f"{HARDWARE_ENDS_MOST} ends in a row by hardware without a new durable checkpoint"
    return (
        JobNext.HELD,
        f"{message}{_BRAKED}{held}: see whether it breaks its nodes, then release it",
    )


def _broken_in_row(cluster: Cluster, job: Job) -> int:
    """Attempts just before this one that hardware ended. A new checkpoint ends the row, and so does a hold for it."""
    since = max(_saved_by(cluster, job), default=0)
    count = 0
    for attempt in reversed(cluster.attempts[job.id]):
        if attempt.number <= since:
            return count
        if attempt.number == job.attempt:
            continue
        if attempt.cause not in _HARDWARE or attempt.stop_next is JobNext.HELD:
            return count
        count += 1
    return count


def _may_do_better(cluster: Cluster, job: Job) -> bool:
    """A plain program that failed by itself fails again; one with a checkpoint, or that asked for attempts, may not."""
    if job.spec.retry.only_infrastructure:
        return False
    return job.spec.retry.max_attempts != 0 or bool(cluster.checkpoints.get(job.id))


def not_before_ms(cluster: Cluster, job: Job, cause: Cause, now_ms: int) -> int:
    """When the next attempt may be placed; 0 is at once."""
    if cause in _NO_BACKOFF:
        return 0
    first = job.spec.retry.backoff_ms or cluster.policy.backoff_ms
    return now_ms + (first << min(job.stalled, DOUBLINGS_MAX))
