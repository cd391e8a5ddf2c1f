"""How far each job is, as its trainers last said through this gateway. Telemetry: bounded, lost at a restart, never state."""

from __future__ import annotations

from typing import Final

import msgspec

from statemachines.values import JobId
from tidemill.v1 import telemetry_pb2

JOBS_MAX: Final = 200_000


class Seen(msgspec.Struct, frozen=True):
    """The furthest step of the newest attempt that was seen; `at_ms` is the gateway's clock."""

    attempt: int
    step: int
    at_ms: int
    step_us: int
    metrics: tuple[tuple[str, float], ...]


class ProgressTable:
    """Latest progress by job; the job that has been silent for longest makes room."""

    def __init__(self, jobs_max: int = JOBS_MAX) -> None:
        self._seen: dict[JobId, Seen] = {}
        self._jobs_max = jobs_max

    def take(self, progress: telemetry_pb2.Progress, at_ms: int) -> None:
        """A rank is at a step. An earlier attempt or a rank that is behind changes nothing."""
        job = JobId(progress.job)
        before = self._seen.pop(job, None)
        if before is None or (progress.attempt, progress.step) >= (before.attempt, before.step):
            metrics = tuple(sorted(progress.metrics.items()))
            if not metrics and before is not None and before.attempt == progress.attempt:
                metrics = before.metrics
            before = Seen(progress.attempt, progress.step, at_ms, progress.step_us, metrics)
        self._seen[job] = before
        if len(self._seen) > self._jobs_max:
            del self._seen[next(iter(self._seen))]

    def of(self, job: JobId) -> Seen | None:
        """The latest of a job, if any was seen."""
        return self._seen.get(job)

    def forget(self, job: JobId) -> None:
        """The job has left hot state."""
        self._seen.pop(job, None)
