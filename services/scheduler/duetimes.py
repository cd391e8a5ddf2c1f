"""Deadlines, windows and timeouts: state with a due time. What is due is a function of the fold, never remembered.

`job_due_ms` and `node_due_ms` say when time alone will change something; `enforce_*` look again and record it. The
heap is an index: rebuilt from state by a new leader, kept up by what was touched, checked against state when it fires.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, TypeAlias

from services.scheduler import attempts, fencing, node_requests
from services.scheduler.draft import Draft
from services.scheduler.exit_codes import Blame
from statemachines.attempt import Attempt, AttemptState
from statemachines.cluster import Cluster, Touched
from statemachines.facts import JobRetired, JobWaiting
from statemachines.job import ENDED, Job, JobState
from statemachines.node import ServiceState
from statemachines.run import Run, RunState
from statemachines.values import Cause, Evidence, JobId, JobNext, NodeId, Reason

# In a heap entry, which kind of id it carries; jobs before nodes at the same time.
_JOB: Final = 0
_NODE: Final = 1
Key: TypeAlias = tuple[int, str]
# After its deadline a stop has so long to be reported, by way of a gateway that may just start.
OVERDUE_MS: Final = 60_000
STOP_OVERDUE: Final = "stop_overdue"


class DueTimes:
    """When to look at which job or node again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._due: dict[Key, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        for job in cluster.jobs:
            self._watch((_JOB, job), job_due_ms(cluster, job))
        for node in cluster.nodes:
            self._watch((_NODE, node), node_due_ms(cluster, node))

    def refresh(self, touched: Touched) -> None:
        """Bring the index up to date with what was touched."""
        for job in touched.jobs:
            self._watch((_JOB, job), job_due_ms(self._cluster, job))
        for node in touched.nodes:
            self._watch((_NODE, node), node_due_ms(self._cluster, node))

    def next_ms(self) -> int | None:
        """The earliest due time."""
        while self._heap:
            at, kind, name = self._heap[0]
            if self._due.get((kind, name)) == at:
                return at
            heappop(self._heap)
        return None

    def enforce(self, draft: Draft, *, limit: int) -> None:
        """Record what is due now, for up to `limit` jobs and nodes, earliest first."""
        for _ in range(limit):
            at = self.next_ms()
            if at is None or at > draft.now_ms:
                return
            _, kind, name = heappop(self._heap)
            del self._due[kind, name]
            with draft.whole():
                if kind == _JOB:
                    enforce_job(draft, JobId(name))
                else:
                    enforce_node(draft, NodeId(name))

    def _watch(self, key: Key, at: int | None) -> None:
        if at is None:
            self._due.pop(key, None)
        elif self._due.get(key) != at:
            self._due[key] = at
            heappush(self._heap, (at, *key))


# --- jobs


def job_due_ms(cluster: Cluster, job_id: JobId) -> int | None:
    """When time alone will change something about this job; None: never."""
    job = cluster.jobs.get(job_id)
    if job is None:
        return None
    if job.state in ENDED:
        return _retires_at(cluster, job)
    attempt = attempts.live(cluster, job_id)
    if attempt is None:
        return None  # Waiting and held jobs are the plan's.
    match attempt.state:
        case AttemptState.STARTING:
            return _starts_by(cluster, attempt)
        case AttemptState.RUNNING:
            return _earliest(_runs_until(job, attempt), _saves_by(cluster, attempt))
        case AttemptState.STOPPING:
            fenced = [at for _, at in _fenced(cluster, job, attempt)] if attempt.lost else []
            return _earliest(*fenced, _overdue_at(cluster, job, attempt))
        case _:
            return None


def enforce_job(draft: Draft, job_id: JobId) -> None:
    """Record what is due for this job now, if anything still is."""
    job = draft.cluster.jobs.get(job_id)
    if job is None:
        return
    if job.state in ENDED:
        at = _retires_at(draft.cluster, job)
        if at is not None and at <= draft.now_ms:
            draft.record(JobRetired(job.id))
        return
    attempt = attempts.live(draft.cluster, job_id)
    if attempt is None:
        return
    match job.state:
        case JobState.STARTING:
            _enforce_start(draft, attempt)
        case JobState.RUNNING:
            _enforce_run(draft, job, attempt)
        case _:
            _enforce_fence(draft, job, attempt)
            _tell_overdue(draft, job_id)


def _retires_at(cluster: Cluster, job: Job) -> int | None:
    after = cluster.policy.retire_after_ms
    if after < 0 or any(attempt.open for attempt in cluster.attempts.get(job.id, ())):
        return None  # Lost runs of an overlap-safe job still hold their devices.
    return job.changed_at_ms + after


def _starts_by(cluster: Cluster, attempt: Attempt) -> int | None:
    """While nobody led, agents could not say that they began: they have all of the time again."""
    timeout = cluster.policy.start_timeout_ms
    since = max(attempt.placed_at_ms, cluster.term_opened_at_ms)
    return since + timeout if timeout > 0 else None


def _enforce_start(draft: Draft, attempt: Attempt) -> None:
    at = _starts_by(draft.cluster, attempt)
    if at is None or at > draft.now_ms:
        return
    runs = [draft.cluster.runs[run] for run in attempt.runs]
    late = ", ".join(
        [f"rank {run.rank} on {run.node}" for run in runs if not run.started_at_ms][:4]
    )
    seconds = draft.cluster.policy.start_timeout_ms // 1000
    message = f"{len(runs) - attempt.started} of {len(runs)} members did not start within {seconds} s: {late}"
    attempts.fail(draft, attempt, Cause.START_FAILED, Blame.UNCLEAR, message)


def _runs_until(job: Job, attempt: Attempt) -> int | None:
    return attempt.started_at_ms + job.spec.max_run_ms if job.spec.max_run_ms > 0 else None


def _saves_by(cluster: Cluster, attempt: Attempt) -> int | None:
    return attempt.ask_deadline_ms if attempts.save_wanted(cluster, attempt) else None


def _enforce_run(draft: Draft, job: Job, attempt: Attempt) -> None:
    until = _runs_until(job, attempt)
    if until is not None and until <= draft.now_ms:
        message = f"its time limit of {job.spec.max_run_ms // 1000} s has passed"
        attempts.stop(draft, attempt, Cause.TIME_LIMIT, message, JobNext.FAILED)
        return
    by = _saves_by(draft.cluster, attempt)
    if by is not None and by <= draft.now_ms:
        attempts.stop_after_save(draft, job.id, "the asked save was not durable by its deadline")


def _fenced(cluster: Cluster, job: Job, attempt: Attempt) -> list[tuple[Run, int]]:
    """Lost runs that their agents kill by themselves, and when that is certain."""
    lost = [cluster.runs[run] for run in attempt.runs]
    timed = [
        (run, fencing.dead_at_ms(cluster, job, run)) for run in lost if run.state is RunState.LOST
    ]
    return [(run, at) for run, at in timed if at is not None]


def _enforce_fence(draft: Draft, job: Job, attempt: Attempt) -> None:
    for run, at in _fenced(draft.cluster, job, attempt):
        if at <= draft.now_ms:
            message = "its agent, cut off for so long, has killed it"
            attempts.run_ended(draft, run, Evidence.SELF_FENCED, message)


def _overdue_at(cluster: Cluster, job: Job, attempt: Attempt) -> int | None:
    """When runs that were told to stop should long be gone; None once the job says so, or if only lost ones are left."""
    said = job.reason is not None and job.reason.code == STOP_OVERDUE
    if said or attempt.open == attempt.lost:
        return None
    return max(attempt.stop_deadline_ms, cluster.term_opened_at_ms) + OVERDUE_MS


def _tell_overdue(draft: Draft, job_id: JobId) -> None:
    """Nobody but a person at the node can do more: its agent has sent SIGKILL, or cannot."""
    cluster = draft.cluster
    attempt = attempts.live(cluster, job_id)
    if attempt is None:
        return
    at = _overdue_at(cluster, cluster.jobs[job_id], attempt)
    if at is None or at > draft.now_ms:
        return
    left = [cluster.runs[run] for run in attempt.runs]
    left = [run for run in left if run.state in (RunState.PLACED, RunState.RUNNING)]
    nodes = tuple(dict.fromkeys([run.node for run in left]))
    names = ", ".join(nodes[:4]) + (", ..." if len(nodes) > 4 else "")
    message = (
        f"runs on {names} should have ended: look at the agent's log there. A process that waits for a disk or a device "
        "cannot be killed; a reboot of its node ends it"
    )
    draft.record(JobWaiting(job_id, Reason(STOP_OVERDUE, message, nodes[:16], len(left))))


def _earliest(*times: int | None) -> int | None:
    known = [at for at in times if at is not None]
    return min(known) if known else None


# --- nodes


def node_due_ms(cluster: Cluster, node_id: NodeId) -> int | None:
    """The deadline of a drain; a drain without one is over only when the node is empty."""
    node = cluster.nodes.get(node_id)
    if node is None or node.service is not ServiceState.DRAINING:
        return None
    return node.drain_deadline_ms


def enforce_node(draft: Draft, node_id: NodeId) -> None:
    """A drain's deadline has passed: what still runs there stops now."""
    at = node_due_ms(draft.cluster, node_id)
    if at is None or at > draft.now_ms:
        return
    for attempt in attempts.live_on(draft.cluster, node_id):
        node_requests.move_away(draft, attempt, node_id)
