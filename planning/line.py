"""The waiting line: jobs that may run now, by class of equal needs, and jobs whose time has not come.

Order is priority with aging, then age. With aging the order of two jobs never changes while they wait: one point of
priority is worth a fixed time of waiting, so a job's key is `queued_at - priority * aging`, computed once. Jobs of one
class (same queue, same roles) fit or fail alike, so a plan looks at one head a class however long the line is.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TypeAlias

from statemachines.job import Job, JobState
from statemachines.policy import Policy
from statemachines.values import JobId, QueueId, Reason, Role

Shape: TypeAlias = tuple[QueueId, tuple[Role, ...]]
Key: TypeAlias = tuple[int, int, int]


def order_key(job: Job, policy: Policy) -> Key:
    """Position in the line, lowest first; the job's number makes it total."""
    if policy.aging_ms_per_point <= 0:
        return (-job.spec.priority, job.queued_at_ms, job.number)
    return (job.queued_at_ms - job.spec.priority * policy.aging_ms_per_point, 0, job.number)


class JobClass:
    """Jobs of equal needs. `blocked` is why the head failed at capacity `version`; `explained` the code its members were told."""

    __slots__ = ("blocked", "explained", "heap", "keys", "shape", "untold", "version")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.keys: dict[JobId, Key] = {}
        self.heap: list[tuple[Key, JobId]] = []
        self.blocked: Reason | None = None
        self.version = 0
        self.explained = ""
        self.untold: dict[JobId, None] = {}

    def add(self, job: JobId, key: Key) -> None:
        """A job joins; jobs that are to be told why they wait are remembered."""
        self.keys[job] = key
        self.untold[job] = None
        heappush(self.heap, (key, job))

    def remove(self, job: JobId) -> None:
        """A job leaves; its heap entry is dropped when it comes up."""
        del self.keys[job]
        self.untold.pop(job, None)

    def head(self) -> tuple[Key, JobId] | None:
        """First in line."""
        while self.heap:
            key, job = self.heap[0]
            if self.keys.get(job) == key:
                return self.heap[0]
            heappop(self.heap)
        return None

    def pop(self) -> tuple[Key, JobId]:
        """Take the head out for the plan at hand; `push` brings it back."""
        key, job = heappop(self.heap)
        self.keys.pop(job)
        self.untold.pop(job, None)
        return key, job

    def push(self, key: Key, job: JobId) -> None:
        """Back in line, until the fold says that it has left."""
        self.add(job, key)

    def tell(self, code: str) -> None:
        """Members are to be told `code`: all again when it is news."""
        if code != self.explained:
            self.explained = code
            self.untold = dict.fromkeys(self.keys)


class Line:
    """All waiting jobs of a cell."""

    def __init__(self) -> None:
        self.classes: dict[Shape, JobClass] = {}
        self._where: dict[JobId, JobClass | None] = {}
        self._later: list[tuple[int, int, JobId]] = []

    def refresh(self, job_id: JobId, job: Job | None, policy: Policy, now_ms: int) -> Job | None:
        """Bring one job up to date; answers it when it must be told that it waits for its time."""
        waits = job is not None and job.state is JobState.QUEUED
        if not waits:
            self._leave(job_id)
            return None
        assert job is not None
        if job.not_before_ms > now_ms:
            self._leave(job_id)
            self._where[job_id] = None
            heappush(self._later, (job.not_before_ms, job.number, job_id))
            return job
        self._join(job, policy)
        return None

    def due(self, now_ms: int) -> list[JobId]:
        """Jobs whose time has come; the caller refreshes them."""
        ready: list[JobId] = []
        while self._later and self._later[0][0] <= now_ms:
            job = heappop(self._later)[2]
            if job in self._where and self._where[job] is None:
                ready.append(job)
        return ready

    def next_due_ms(self) -> int | None:
        """When the next job's time comes."""
        return self._later[0][0] if self._later else None

    def _join(self, job: Job, policy: Policy) -> None:
        key = order_key(job, policy)
        shape = (job.spec.queue, job.spec.roles)
        here = self._where.get(job.id)
        if here is not None and here.keys[job.id] == key:
            return
        self._leave(job.id)
        found = self.classes.get(shape)
        if found is None:
            found = self.classes[shape] = JobClass(shape)
        found.add(job.id, key)
        self._where[job.id] = found

    def _leave(self, job_id: JobId) -> None:
        here = self._where.pop(job_id, None)
        if here is None:
            return
        here.remove(job_id)
        if not here.keys:
            del self.classes[here.shape]
