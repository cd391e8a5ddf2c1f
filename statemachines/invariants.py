"""What is always true of a state: the invariants of the design, by their letters, as far as one state shows them.

Counts everything again from the entities and compares, so it costs as much as the state is large: for tests,
simulation, chaos and a look after recovery. What only a step shows is in watcher.py. Never changes anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from statemachines.attempt import Attempt, AttemptState
from statemachines.checkpoint import CheckpointState
from statemachines.cluster import Cluster
from statemachines.job import ENDED, LIVE, Job, JobState
from statemachines.node import NodeState
from statemachines.run import Run, RunState
from statemachines.values import JobId, NodeId, QueueId, RunId

_SAME: Final[Mapping[JobState, AttemptState]] = {
    JobState.STARTING: AttemptState.STARTING,
    JobState.RUNNING: AttemptState.RUNNING,
    JobState.STOPPING: AttemptState.STOPPING,
}


def violations(cluster: Cluster) -> list[str]:
    """Every invariant that this state breaks, one line each, its letter first; empty when all hold."""
    return [
        *_devices(cluster),
        *_gangs(cluster),
        *_jobs(cluster),
        *_checkpoints(cluster),
        *_overlaps(cluster),
        *_node_usage(cluster),
        *_queue_usage(cluster),
        *_strays(cluster),
    ]


def unexplained(cluster: Cluster, *, after_ms: int) -> list[str]:
    """D as a promise in time: jobs that have waited longer than `after_ms` and still have no reason."""
    return [
        f"D: job {job.id} waits since {job.queued_at_ms} without a reason"
        for job in cluster.jobs.values()
        if job.state is JobState.QUEUED
        and job.reason is None
        and cluster.at_ms - max(job.queued_at_ms, job.not_before_ms) > after_ms
    ]


def open_runs(cluster: Cluster) -> Iterator[Run]:
    """Runs of which something may still be left on their node."""
    return (run for run in cluster.runs.values() if run.state is not RunState.ENDED)


def _devices(cluster: Cluster) -> Iterator[str]:
    """A: a device has one holder at most."""
    holders: dict[tuple[NodeId, int], RunId] = {}
    for run in open_runs(cluster):
        for grant in run.devices:
            holder = holders.setdefault((run.node, grant.index), run.id)
            if holder != run.id:
                yield f"A: device {grant.index} of {run.node} is held by {holder} and {run.id}"
        if len({grant.index for grant in run.devices}) != len(run.devices):
            yield f"A: run {run.id} was granted one device twice"


def _gangs(cluster: Cluster) -> Iterator[str]:
    """B: the runs of an attempt are the members of its gang, and its counters count them."""
    for name, tried in cluster.attempts.items():
        job = cluster.jobs.get(name)
        if job is None:
            yield f"B: attempts of job {name}, which does not exist"
            continue
        numbers = [attempt.number for attempt in tried]
        if numbers != sorted(set(numbers)) or numbers[-1] != job.attempt:
            yield f"B: job {name} is at attempt {job.attempt} and has attempts {numbers}"
        for attempt in tried:
            yield from _gang(cluster, job, attempt)


def _gang(cluster: Cluster, job: Job, attempt: Attempt) -> Iterator[str]:
    title = f"attempt {attempt.number} of job {job.id}"
    runs = [cluster.runs[run] for run in attempt.runs if run in cluster.runs]
    if [run.rank for run in runs] != list(range(job.spec.members)):
        yield f"B: {title} has ranks {[run.rank for run in runs]} of {job.spec.members} members"
    if any((run.job, run.attempt) != (job.id, attempt.number) for run in runs):
        yield f"B: {title} names a run of another attempt"
    states = Counter(run.state for run in runs)
    counted = (
        sum(run.started_at_ms > 0 for run in runs),
        len(runs) - states[RunState.ENDED],
        states[RunState.LOST],
    )
    if counted != (attempt.started, attempt.open, attempt.lost):
        told = (attempt.started, attempt.open, attempt.lost)
        yield f"B: {title} counts {told} runs as started, open and lost; they are {counted}"


def _jobs(cluster: Cluster) -> Iterator[str]:
    """D: a job runs, waits, is held with a reason or has ended, and its attempt agrees."""
    for job in cluster.jobs.values():
        attempt = cluster.attempt(job.id)
        if job.state in LIVE:
            if attempt is None or attempt.state is not _SAME[job.state]:
                yield f"D: job {job.id} is {job.state}, its attempt is {attempt and attempt.state}"
        elif attempt is not None and attempt.state is not AttemptState.ENDED:
            yield f"D: job {job.id} is {job.state}, its attempt is {attempt.state}"
        if job.state in {JobState.HELD, *ENDED} and job.reason is None:
            yield f"D: job {job.id} is {job.state} without a reason"
        if (job.attempt > 0) != (attempt is not None):
            yield f"D: job {job.id} is at attempt {job.attempt}, which is not kept"


def _checkpoints(cluster: Cluster) -> Iterator[str]:
    """E: what a job counts on is its newest durable checkpoint."""
    for name, kept in cluster.checkpoints.items():
        if name not in cluster.jobs:
            yield f"E: checkpoints of job {name}, which does not exist"
        steps = [checkpoint.step for checkpoint in kept]
        if steps != sorted(set(steps)):
            yield f"E: checkpoints of job {name} are at steps {steps}"
    for job in cluster.jobs.values():
        durable = [
            checkpoint.step
            for checkpoint in cluster.checkpoints.get(job.id, ())
            if checkpoint.state is CheckpointState.DURABLE
        ]
        if job.durable_step != max(durable, default=-1):
            yield f"E: job {job.id} counts on step {job.durable_step}; durable are {durable}"


def _overlaps(cluster: Cluster) -> Iterator[str]:
    """J: what is left of an earlier attempt is lost, and its job is overlap-safe."""
    for run in open_runs(cluster):
        job = cluster.jobs.get(run.job)
        if job is None or (run.attempt == job.attempt and job.state in LIVE):
            continue
        if not job.spec.overlap_safe:
            yield f"J: run {run.id} is open; job {job.id} is {job.state} at {job.attempt}"
        elif run.state is not RunState.LOST:
            yield f"J: run {run.id} of an ended attempt is {run.state}, not lost"


def _node_usage(cluster: Cluster) -> Iterator[str]:
    """A: what a node is said to have given is what its open runs hold."""
    cpu, memory = Counter[NodeId](), Counter[NodeId]()
    holders: dict[NodeId, dict[int, RunId]] = {name: {} for name in cluster.nodes}
    runs: dict[NodeId, list[RunId]] = {name: [] for name in cluster.nodes}
    for run in open_runs(cluster):
        node = cluster.nodes.get(run.node)
        if node is None:
            yield f"A: run {run.id} is on {run.node}, which does not exist"
            continue
        cpu[run.node] += run.cpu_milli
        memory[run.node] += run.memory_mib
        holders[run.node].update({grant.index: run.id for grant in run.devices})
        runs[run.node].append(run.id)
        if node.state is NodeState.LOST and run.state is not RunState.LOST:
            yield f"F: run {run.id} is {run.state} on {run.node}, which is lost"
    if list(cluster.usage) != list(cluster.nodes):
        yield "A: usage is kept of other nodes than there are"
    for name, usage in cluster.usage.items():
        told = (usage.cpu_milli, usage.memory_mib, usage.holders, list(usage.runs))
        counted = (cpu[name], memory[name], holders.get(name), runs.get(name))
        if told != counted:
            yield f"A: usage of {name} is {told}; its open runs hold {counted}"


def _queue_usage(cluster: Cluster) -> Iterator[str]:
    """H: what a queue is said to hold is what its jobs and those of the queues below it hold."""
    states: dict[QueueId, Counter[JobState]] = {name: Counter() for name in cluster.queues}
    devices, cpu = Counter[QueueId](), Counter[QueueId]()
    for job in cluster.jobs.values():
        for queue in cluster.queue_line(job.spec.queue):
            states[queue.id][job.state] += 1
            if job.state in LIVE:
                devices[queue.id] += job.spec.devices
                cpu[queue.id] += job.spec.cpu_milli
    if list(cluster.queue_usage) != list(cluster.queues):
        yield "H: usage is kept of other queues than there are"
    for name, usage in cluster.queue_usage.items():
        told = (usage.devices, usage.cpu_milli, {k: n for k, n in usage.states.items() if n})
        counted = (devices[name], cpu[name], dict(states.get(name, {})))
        if told != counted:
            yield f"H: usage of queue {name} is {told}; its jobs hold {counted}"


def _strays(cluster: Cluster) -> Iterator[str]:
    """Nothing is kept of what is gone, and every alias leads to its job."""
    kept: set[RunId] = set()
    for tried in cluster.attempts.values():
        for attempt in tried:
            kept.update(attempt.runs)
    for run in cluster.runs:
        if run not in kept:
            yield f"B: run {run} belongs to no attempt"
    numbers: dict[int, JobId] = {job.number: job.id for job in cluster.jobs.values()}
    if numbers != cluster.job_numbers:
        yield "K: the aliases of jobs are not those that were given"
