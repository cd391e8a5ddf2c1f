"""What is always true of a step: the invariants that show only where a fact meets the state before it.

Costs as much as the fact is large, so production may afford it. What a state alone shows is in invariants.py. Never
changes the cluster except through its own `apply`, `seal` and `fold`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Final

from statemachines.checkpoint import CheckpointState
from statemachines.cluster import Cluster
from statemachines.device import DeviceState
from statemachines.entry import Entry, Recorded
from statemachines.facts import (
    CheckpointReleased,
    GangPlaced,
    InputGapAccepted,
    JobAdmitted,
    NodeLost,
    RunEnded,
    TermOpened,
)
from statemachines.job import Job
from statemachines.queue import NO_LIMIT
from statemachines.run import RunState
from statemachines.values import WHOLE_DEVICE_MILLI, Evidence, NodeId, Placement, Reach

# I: more nodes than both of these may not be given up within a minute.
LOSSES_LEAST: Final = 3
LOSSES_PERCENT: Final = 2
_MINUTE_MS: Final = 60_000
_ANYWHERE: Final = frozenset({Reach.CELL, Reach.EVERYWHERE})


class Watcher:
    """Sees every fact with the state before it; remembers only when nodes were lost."""

    def __init__(self) -> None:
        self._lost_at_ms: deque[int] = deque()

    def fold(self, cluster: Cluster, entry: Entry) -> list[str]:
        """Fold the entry, fact by fact; what it broke, one line each with the invariant's letter first."""
        if cluster.void_reason(entry):
            cluster.fold(entry)
            return []
        broken = list(_entry(cluster, entry))
        for recorded in entry.facts:
            broken += self.see(cluster, recorded, entry.at_ms)
            cluster.apply(recorded, entry.at_ms)
        cluster.seal(entry)
        cluster.settle(entry)
        return broken

    def see(self, cluster: Cluster, recorded: Recorded, at_ms: int) -> list[str]:
        """What the fact would break, called before the cluster takes it."""
        match recorded.fact:
            case GangPlaced() as fact:
                return list(_placed(cluster, fact, at_ms))
            case JobAdmitted() as fact:
                return list(_admitted(cluster, fact))
            case RunEnded() as fact:
                return list(_ended(cluster, fact, recorded, at_ms))
            case CheckpointReleased() as fact:
                return list(_released(cluster, fact))
            case NodeLost() as fact:
                return list(self._lost(cluster, fact, recorded, at_ms))
            case _:
                return []

    def _lost(
        self, cluster: Cluster, fact: NodeLost, recorded: Recorded, at_ms: int
    ) -> Iterator[str]:
        """I: nodes are given up one by one, and none during an incident; people may do as they like."""
        if recorded.by:
            return
        if cluster.incident is not None:
            yield f"I: node {fact.node} is lost during incident {cluster.incident.incident}"
        lost = self._lost_at_ms
        lost.append(at_ms)
        while lost[0] <= at_ms - _MINUTE_MS:
            lost.popleft()
        if len(lost) > max(LOSSES_LEAST, len(cluster.nodes) * LOSSES_PERCENT // 100):
            yield f"I: {len(lost)} of {len(cluster.nodes)} nodes are lost within a minute"


def _entry(cluster: Cluster, entry: Entry) -> Iterator[str]:
    """Time and term go forward, a term begins by being opened; K: no input is left out or decided twice."""
    if entry.at_ms < cluster.at_ms:
        yield f"C: entry {entry.offset} is at {entry.at_ms}, the one before at {cluster.at_ms}"
    opened = [each.fact.term for each in entry.facts if isinstance(each.fact, TermOpened)]
    if opened != ([entry.term] if entry.term > cluster.term else []):
        yield f"C: entry {entry.offset} of term {entry.term} opens {opened} after {cluster.term}"
    expected = dict(cluster.positions)
    for recorded in entry.facts:
        if isinstance(recorded.fact, InputGapAccepted):
            expected[(recorded.fact.topic, recorded.fact.partition)] = recorded.fact.to_offset
    for position in entry.consumed:
        key = (position.topic, position.partition)
        first = expected.get(key, position.first_offset)
        if position.first_offset != first or position.next_offset <= position.first_offset:
            yield f"K: {position} is decided after {key} was at {first}"
        expected[key] = position.next_offset


def _admitted(cluster: Cluster, fact: JobAdmitted) -> Iterator[str]:
    """H: jobs that have not ended stay under the limits of their queues."""
    for queue in cluster.queue_line(fact.spec.queue):
        usage = cluster.queue_usage[queue.id]
        jobs = usage.waiting + usage.held + usage.live + max(fact.count, 1)
        if queue.job_limit != NO_LIMIT and jobs > queue.job_limit:
            yield f"H: queue {queue.id} may have {queue.job_limit} jobs and gets {jobs}"


def _placed(cluster: Cluster, fact: GangPlaced, at_ms: int) -> Iterator[str]:
    job = cluster.jobs[fact.job]
    yield from _whole(job, fact)
    yield from _fits(cluster, fact)
    yield from _within_limits(cluster, job)
    yield from _resumes(cluster, fact)
    if at_ms < job.not_before_ms:
        yield f"G: job {job.id} is placed before {job.not_before_ms}"
    for attempt in cluster.attempts.get(job.id, ()):
        if attempt.open and not (job.spec.overlap_safe and attempt.open == attempt.lost):
            yield f"J: attempt {attempt.number} of job {job.id} has {attempt.open} open runs"


def _whole(job: Job, fact: GangPlaced) -> Iterator[str]:
    """B: every member of every role, once, with what its role asks for."""
    roles = Counter(placement.role for placement in fact.placements)
    if roles != Counter({role.name: role.count for role in job.spec.roles}):
        yield f"B: job {job.id} is placed as {dict(roles)}"
    named = [(placement.run, placement.rank) for placement in fact.placements]
    if named != [(f"{job.id}.{fact.attempt}.{rank}", rank) for rank in range(len(named))]:
        yield f"B: job {job.id} is placed with runs {named}"
    asked = {role.name: role.resources for role in job.spec.roles}
    for placement in fact.placements:
        need = asked.get(placement.role)
        given = (placement.cpu_milli, placement.memory_mib, len(placement.devices))
        if need and given != (need.cpu_milli, need.memory_mib, need.devices):
            yield f"B: run {placement.run} gets {given}, not what its role asks for"


def _fits(cluster: Cluster, fact: GangPlaced) -> Iterator[str]:
    """F and A: only on nodes that are open, only what they have and is free there."""
    cpu, memory = Counter[NodeId](), Counter[NodeId]()
    taken: set[tuple[NodeId, int]] = set()
    for placement in fact.placements:
        node = cluster.nodes.get(placement.node)
        if node is None or not node.open:
            how = f"{node.state}, {node.service}" if node else "unknown"
            yield f"F: run {placement.run} is placed on {placement.node}, which is {how}"
            continue
        cpu[node.id] += placement.cpu_milli
        memory[node.id] += placement.memory_mib
        usage, has = cluster.usage[node.id], node.inventory
        if (
            usage.cpu_milli + cpu[node.id] > has.cpu_milli
            or usage.memory_mib + memory[node.id] > has.memory_mib
        ):
            yield f"A: run {placement.run} does not fit on {node.id}"
        yield from _grants(cluster, placement, taken)


def _grants(
    cluster: Cluster, placement: Placement, taken: set[tuple[NodeId, int]]
) -> Iterator[str]:
    node = cluster.nodes[placement.node]
    usable = {
        device.spec.index for device in node.devices if device.state is not DeviceState.FAULTY
    }
    for grant in placement.devices:
        at = (node.id, grant.index)
        free = grant.index in usable and grant.index not in cluster.usage[node.id].holders
        if not free or at in taken or grant.milli != WHOLE_DEVICE_MILLI:
            yield f"A: run {placement.run} is granted {grant} of {node.id}, which it cannot have"
        taken.add(at)


def _within_limits(cluster: Cluster, job: Job) -> Iterator[str]:
    """H: a placement keeps its queue and those above it within their limits."""
    for queue in cluster.queue_line(job.spec.queue):
        usage = cluster.queue_usage[queue.id]
        # A limit that was lowered leaves its queue over it; what asks for none of it adds none.
        devices, cpu_milli = job.spec.demand()
        if devices and NO_LIMIT != queue.device_limit < usage.devices + devices:
            yield f"H: job {job.id} takes queue {queue.id} over {queue.device_limit} devices"
        if cpu_milli and NO_LIMIT != queue.cpu_milli_limit < usage.cpu_milli + cpu_milli:
            yield f"H: job {job.id} takes queue {queue.id} over {queue.cpu_milli_limit} milli-CPU"


def _resumes(cluster: Cluster, fact: GangPlaced) -> Iterator[str]:
    """E: from a durable checkpoint, and from none older than one that can be loaded anywhere."""
    resume = fact.resume
    durable = {
        checkpoint.step: checkpoint
        for checkpoint in cluster.checkpoints.get(fact.job, ())
        if checkpoint.state is CheckpointState.DURABLE
    }
    if resume.uri:
        known = durable.get(resume.step)
        if known is None or (known.uri, known.manifest, known.attempt) != (
            resume.uri,
            resume.manifest,
            resume.attempt,
        ):
            yield f"E: job {fact.job} resumes from {resume}, which is not durable"
    newest = max((step for step, each in durable.items() if each.reach in _ANYWHERE), default=-1)
    if newest > resume.step or (newest >= 0 and not resume.uri):
        yield f"E: job {fact.job} resumes from {resume} though step {newest} is durable"


def _released(cluster: Cluster, fact: CheckpointReleased) -> Iterator[str]:
    """E: the restart point of a job that may still run is not let go."""
    if fact.step == cluster.jobs[fact.job].durable_step:
        yield f"E: job {fact.job} counts on step {fact.step}, which is released"


def _ended(cluster: Cluster, fact: RunEnded, recorded: Recorded, at_ms: int) -> Iterator[str]:
    """J: a fence that no agent reported is believed only after its time."""
    if fact.evidence is not Evidence.SELF_FENCED or recorded.input:
        return
    run, policy = cluster.runs[fact.run], cluster.policy
    job = cluster.jobs[run.job]
    fence_ms = job.spec.fence_after_ms or policy.fence_after_ms
    due_ms = max(run.lost_at_ms, cluster.term_opened_at_ms) + fence_ms + policy.fence_margin_ms
    if run.state is not RunState.LOST or fence_ms < 0 or at_ms < due_ms:
        yield f"J: run {run.id} is taken as fenced at {at_ms}, which is too early"
