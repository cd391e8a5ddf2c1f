"""What becomes of a job after a bad end: another attempt, a hold, or failure; and how long it waits before.

Pure over the job as it was before the end. Bounds are the job's own or, where it gives none, the cell's.
"""

from __future__ import annotations

from typing import Final

from services.scheduler.exit_codes import Blame
from statemachines.cluster import Cluster
from statemachines.job import Job
from statemachines.values import Cause, JobNext

# Doublings of the first backoff.
DOUBLINGS_MAX: Final = 5
# After these the next attempt need not wait: nothing says that it would fail the same way.
_NO_BACKOFF: Final = frozenset(
    {
        Cause.NODE_LOST, Cause.DEVICE_FAULT, Cause.NIC_FAULT, Cause.HELD, Cause.REQUEUED, Cause.DRAINED,
        Cause.PREEMPTED,
    }
)  # fmt: skip


def consequence(cluster: Cluster, job: Job, blame: Blame, message: str) -> tuple[JobNext, str]:
    """What comes after an attempt that ends badly now, and the message that says so."""
    if blame is Blame.CELL:
        return JobNext.QUEUED, message
    if blame is Blame.PROGRAM and not _may_do_better(cluster, job):
        return JobNext.FAILED, message
    retry, policy = job.spec.retry, cluster.policy
    most = retry.max_attempts or policy.max_attempts
    if most > 0 and job.failed + 1 >= most:
        return JobNext.FAILED, f"{message}; it was the last of {most} attempts that may end badly"
    brake = retry.max_attempts_without_progress or policy.max_attempts_without_progress
    if brake > 0 and job.stalled + 1 >= brake:
        held = f"held after {job.stalled + 1} bad ends in a row without a new durable checkpoint"
        return JobNext.HELD, f"{message}; {held}: release it to try again"
    return JobNext.QUEUED, message


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
