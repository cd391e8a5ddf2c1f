"""SubmitJob: a spec that makes sense, in a queue that exists and has room for it, becomes a job or an array of jobs.

What no node of the cell could hold is not refused: it waits, with that reason, because nodes come and go.
"""

from __future__ import annotations

import re
from typing import Final

from services.scheduler.answers import Asked, RefusedError, accept
from services.scheduler.arrays import Arrays
from services.scheduler.draft import ENTRY_BYTES, Draft
from services.scheduler.wire import DURATION_MS_MAX, value
from statemachines.cluster import Cluster
from statemachines.facts import JobAdmitted
from statemachines.queue import NO_LIMIT
from statemachines.values import JobId, JobSpec, QueueId, Role
from tidemill.v1 import requests_pb2

JOB_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
NAME_CHARS: Final = 253
DIGEST_CHARS: Final = 64
LABELS_MAX: Final = 64
COUNT_MAX: Final = 100_000
MEMBERS_MAX: Final = 16_384
CPU_MILLI_MAX: Final = 4_096_000
MEMORY_MIB_MAX: Final = 67_108_864
DEVICES_MAX: Final = 256
PROCESSES_MAX: Final = 256
PRIORITY_MAX: Final = 1_000_000
ATTEMPTS_MAX: Final = 100_000
CHECKPOINTS_MAX: Final = 1000
# What a placement takes in an entry beside its names and grants; and a grant.
_PLACEMENT_BYTES: Final = 64
_GRANT_BYTES: Final = 8
# Long enough for the names of nodes that people give.
_NODE_NAME_BYTES: Final = 64


def submit(draft: Draft, arrays: Arrays, request: Asked, said: requests_pb2.SubmitJob) -> None:
    """Admit it and so answer it; raises RefusedError or UnfitError."""
    spec = value(JobSpec, said.spec)
    check_spec(spec, said.job)
    _want(JOB_ID.fullmatch(said.job) is not None, "job", f"{said.job[:64]!r} is not a job id")
    _want(0 <= said.count <= COUNT_MAX, "count", f"an array holds 1 to {COUNT_MAX} jobs")
    jobs = max(1, said.count)
    known = arrays.named(said.job)
    if known:
        _submitted_before(draft, request, known[0], spec)
        return
    check_queue(draft.cluster, spec.queue, jobs)
    number = draft.cluster.next_number
    job = JobId(said.job)
    draft.record(JobAdmitted(job, number, said.count, spec, request.key, request.digest))
    if said.count:
        arrays.admitted(job, said.count)


def _submitted_before(draft: Draft, request: Asked, job: JobId, spec: JobSpec) -> None:
    """Its answer has been forgotten, the job has not: the id comes from the request, so it is the same request."""
    known = draft.cluster.jobs[job]
    if known.by != draft.by or known.spec != spec:
        raise RefusedError(
            "request_id_reused",
            f"job {request.target} exists already: use a new request id",
            field="job",
        )
    accept(draft, request)


def check_queue(cluster: Cluster, name: QueueId, jobs: int) -> None:
    """The queue exists, and it and those above it take that many more live jobs; raises RefusedError."""
    if name not in cluster.queues:
        known = ", ".join(sorted(cluster.queues)[:8]) or "none"
        raise RefusedError(
            "unknown_queue", f"there is no queue {name}; there is: {known}", field="spec.queue"
        )
    for queue in cluster.queue_line(name):
        usage = cluster.queue_usage[queue.id]
        present = usage.waiting + usage.live + usage.held
        if queue.job_limit != NO_LIMIT and present + jobs > queue.job_limit:
            raise RefusedError(
                "job_limit",
                f"queue {queue.id} holds {present} of its {queue.job_limit} jobs; this adds {jobs}: wait for some to "
                "end, or raise its limit",
                field="spec.queue",
            )


# --- arithmetic sense


def check_spec(spec: JobSpec, job: str) -> None:
    """What every later decision relies on; raises RefusedError naming the field."""
    _want(0 < len(spec.name) <= NAME_CHARS, "spec.name", f"1 to {NAME_CHARS} characters")
    _want(len(spec.launch) <= DIGEST_CHARS, "spec.launch", "not a SHA-256 in hex")
    _want(len(spec.labels) <= LABELS_MAX, "spec.labels", f"at most {LABELS_MAX}")
    _want(abs(spec.priority) <= PRIORITY_MAX, "spec.priority", f"at most {PRIORITY_MAX} either way")
    _want(bool(spec.roles), "spec.roles", "a job needs at least one role")
    names = [role.name for role in spec.roles]
    _want(len(set(names)) == len(names), "spec.roles", "two roles have the same name")
    for at, role in enumerate(spec.roles):
        _check_role(role, f"spec.roles[{at}]")
    _check_size(spec, job)
    _check_times(spec)
    retry = spec.retry
    _want(-1 <= retry.max_attempts <= ATTEMPTS_MAX, "spec.retry.max_attempts", "out of range")
    _want(
        0 <= retry.max_attempts_without_progress <= ATTEMPTS_MAX,
        "spec.retry.max_attempts_without_progress",
        "out of range",
    )
    keep = spec.keep_checkpoints
    _want(0 <= keep <= CHECKPOINTS_MAX, "spec.keep_checkpoints", f"at most {CHECKPOINTS_MAX}")


def _check_role(role: Role, field: str) -> None:
    need = role.resources
    _want(1 <= role.count <= MEMBERS_MAX, f"{field}.count", f"1 to {MEMBERS_MAX} members")
    _want(0 <= role.processes <= PROCESSES_MAX, f"{field}.processes", f"at most {PROCESSES_MAX}")
    _want(0 <= need.devices <= DEVICES_MAX, f"{field}.resources.devices", f"0 to {DEVICES_MAX}")
    _want(
        0 <= need.cpu_milli <= CPU_MILLI_MAX,
        f"{field}.resources.cpu_milli",
        f"0 to {CPU_MILLI_MAX}",
    )
    _want(
        0 <= need.memory_mib <= MEMORY_MIB_MAX,
        f"{field}.resources.memory_mib",
        f"0 to {MEMORY_MIB_MAX}",
    )


def _check_size(spec: JobSpec, job: str) -> None:
    """A gang is placed by one fact, and a fact must fit an entry."""
    size = sum(
        role.count
        * (
            _PLACEMENT_BYTES + _NODE_NAME_BYTES + len(job) + len(role.name)
            + role.resources.devices * _GRANT_BYTES
        )
        for role in spec.roles
    )  # fmt: skip
    _want(
        size <= ENTRY_BYTES,
        "spec.roles",
        f"{spec.members} members are more than one placement can hold: use fewer, larger members",
    )


def _check_times(spec: JobSpec) -> None:
    times = {
        "grace_ms": spec.grace_ms,
        "hang_after_ms": spec.hang_after_ms,
        "max_run_ms": spec.max_run_ms,
        "retry.backoff_ms": spec.retry.backoff_ms,
    }
    for field, time_ms in times.items():
        _want(0 <= time_ms <= DURATION_MS_MAX, f"spec.{field}", f"0 to {DURATION_MS_MAX} ms")
    after = spec.fence_after_ms
    _want(-1 <= after <= DURATION_MS_MAX, "spec.fence_after_ms", f"-1 to {DURATION_MS_MAX} ms")


def _want(holds: bool, field: str, otherwise: str) -> None:  # noqa: FBT001 - the condition itself
    if not holds:
        raise RefusedError("impossible", f"{field}: {otherwise}", field=field)
