"""Watching jobs: the view of each that matches, a marker, then a view at every change.

A watcher pulls at its own pace from a bounded queue; one that is too slow is cut, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from services.gateway.effects import Effects, Now, Outbox
from services.gateway.names import Selection
from services.gateway.refusal import Refusal, Status
from statemachines.cluster import Cluster
from statemachines.job import Job
from statemachines.values import JobId
from tidemill.v1 import job_service_pb2, views_pb2

CHANGES_BEHIND_MAX: Final = 10_000
WATCHERS_MAX: Final = 1_000

Render: TypeAlias = Callable[[Job], views_pb2.JobView]


class Watcher(Outbox):
    """One WatchJobs call. A job that is still in the backlog will be seen as it is then, so its changes are not queued."""

    def __init__(
        self, effects: Effects, cluster: Cluster, selection: Selection, render: Render
    ) -> None:
        super().__init__(effects, limit=CHANGES_BEHIND_MAX)
        self._cluster = cluster
        self._render = render
        self.selection = selection
        self._shown = {job.id: None for job in selection.candidates()}
        self._backlog = dict(self._shown)
        self._current = False

    def pull(self, now: Now) -> job_service_pb2.WatchJobsResponse | None:
        while self._backlog and self.refusal is None:
            job = self._cluster.jobs.get(self._backlog.popitem()[0])
            if job is not None:
                return job_service_pb2.WatchJobsResponse(job=self._render(job))
        if not self._current and self.refusal is None:
            self._current = True
            return job_service_pb2.WatchJobsResponse(current=True)
        message = super().pull(now)
        assert message is None or isinstance(message, job_service_pb2.WatchJobsResponse)
        return message

    def wants(self, job: Job) -> bool:
        """Whether a change of this job is to be queued: it matches now, or did when it was last shown."""
        if job.id in self._backlog:
            return False
        if self.selection.matches(job):
            self._shown[job.id] = None
            return True
        shown = job.id in self._shown
        self._shown.pop(job.id, None)
        return shown

    def gone(self, job: JobId) -> None:
        """The job has left hot state."""
        self._shown.pop(job, None)
        self._backlog.pop(job, None)

    def too_slow(self) -> Refusal:
        return Refusal(
            Status.ABORTED,
            "watcher_too_slow",
            f"more than {CHANGES_BEHIND_MAX} changes were not read in time; watch again: "
            "the views that come first make up for what was missed",
            retry_after_ms=100,
        )


class Watchers:
    """All that watch through this gateway."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._all: dict[Watcher, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, watcher: Watcher) -> None:
        """Raises Refusal when there are too many."""
        if len(self._all) >= WATCHERS_MAX:
            raise Refusal(
                Status.RESOURCE_EXHAUSTED,
                "too_many_watchers",
                f"{WATCHERS_MAX} watch already; one WatchJobs can follow many jobs",
                retry_after_ms=1_000,
            )
        self._all[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        """The caller has gone."""
        self._all.pop(watcher, None)

    def changed(self, touched: Iterable[JobId], render: Render) -> None:
        """Jobs changed: each view is made once, and only if somebody wants it."""
        if not self._all:
            return
        for name in touched:
            job = self._cluster.jobs.get(name)
            if job is None:
                for watcher in self._all:
                    watcher.gone(name)
                continue
            interested = [watcher for watcher in self._all if watcher.wants(job)]
            if interested:
                message = job_service_pb2.WatchJobsResponse(job=render(job))
                for watcher in interested:
                    watcher.put(message)
