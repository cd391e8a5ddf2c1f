"""Where an attempt starts from, which port its rank 0 listens on, and which nodes it had better avoid."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from statemachines.attempt import Attempt
from statemachines.checkpoint import Checkpoint, CheckpointState
from statemachines.cluster import Cluster
from statemachines.device import DeviceState
from statemachines.job import Job
from statemachines.nic import NicState
from statemachines.run import Run, RunState
from statemachines.values import Cause, Evidence, NodeId, Placement, Reach, ResumePoint

_FROM_ANYWHERE: Final = frozenset({Reach.CELL, Reach.EVERYWHERE})
# A node that was there to see its member end proves nothing against itself; with these ends it was not.
_NODE_WENT: Final = frozenset(
    {
        Evidence.FENCE_CONFIRMED,
        Evidence.SELF_FENCED,
        Evidence.NODE_REBOOTED,
        Evidence.OPERATOR_SAID,
    }
)
# Megatron: the same checkpoint on other nodes; hardware suspect after a failed validation.
_OTHER_NODES: Final = 16
_OTHER_HARDWARE: Final = frozenset({_OTHER_NODES, 17})


def restart_point(cluster: Cluster, job: Job, placements: tuple[Placement, ...]) -> ResumePoint:
    """The newest durable checkpoint that these placements can load; the beginning when there is none."""
    for checkpoint in reversed(cluster.checkpoints.get(job.id, ())):
        if checkpoint.state is CheckpointState.DURABLE and _reachable(checkpoint, placements):
            return ResumePoint(
                checkpoint.step, checkpoint.uri, checkpoint.manifest, checkpoint.attempt
            )
    return ResumePoint()


def _reachable(checkpoint: Checkpoint, placements: tuple[Placement, ...]) -> bool:
    if checkpoint.reach in _FROM_ANYWHERE:
        return True
    return len(placements) == 1 and placements[0].node == checkpoint.node != ""


def master_port(cluster: Cluster, job: Job, node: NodeId, *, given: Collection[int] = ()) -> int:
    """A port of the policy's range that no other live gang led from this node uses; moves on with each attempt.

    `given` are those that the plan at hand gives away there.
    """
    used = set(given)
    for run_id in cluster.usage[node].runs:
        run = cluster.runs[run_id]
        attempt = cluster.find_attempt(run.job, run.attempt) if run.rank == 0 else None
        if attempt is not None:
            used.add(attempt.master_port)
    policy = cluster.policy
    at = job.number * 7 + job.attempt
    for step in range(policy.port_count):
        port = policy.port_first + (at + step) % policy.port_count
        if port not in used:
            return port
    return policy.port_first + at % policy.port_count


def avoid(cluster: Cluster, job: Job) -> frozenset[NodeId]:
    """Nodes where the last attempt failed in a way that may be theirs. Membership is asked, order never.

    Members that only followed, stopped because another failed, say nothing against their nodes however they exited.
    """
    last = cluster.attempt(job.id)
    if last is None:
        return frozenset()
    runs = [cluster.runs[run_id] for run_id in last.runs]
    return frozenset([run.node for run in runs if _suspect(cluster, last.cause, run)])


def leave(cluster: Cluster, job: Job) -> frozenset[NodeId]:
    """All nodes of the last attempt if a member of it asked for others: who hears nothing cannot know whose fault it is."""
    last = cluster.attempt(job.id)
    if last is None:
        return frozenset()
    runs = [cluster.runs[run_id] for run_id in last.runs]
    asked = any(run.exit_code == _OTHER_NODES for run in runs)
    return frozenset([run.node for run in runs]) if asked else frozenset()


def broken_by(cluster: Cluster, attempt: Attempt) -> frozenset[NodeId]:
    """Nodes whose hardware brought the attempt down, whatever its program said: nobody can blame a node by exit codes."""
    runs = [cluster.runs[run_id] for run_id in attempt.runs]
    return frozenset([run.node for run in runs if _failed(cluster, attempt.cause, run)])


def _suspect(cluster: Cluster, cause: Cause | None, run: Run) -> bool:
    never_began = cause is Cause.START_FAILED and not run.started_at_ms
    return never_began or run.exit_code in _OTHER_HARDWARE or _failed(cluster, cause, run)


def _failed(cluster: Cluster, cause: Cause | None, run: Run) -> bool:
    node = cluster.nodes.get(run.node)
    match cause:
        case Cause.NODE_LOST:
            return run.state is RunState.LOST or run.evidence in _NODE_WENT
        case Cause.DEVICE_FAULT if node is not None:
            held = {grant.index for grant in run.devices}
            faulty = [each for each in node.devices if each.state is DeviceState.FAULTY]
            return any(each.spec.index in held for each in faulty)
        case Cause.NIC_FAULT if node is not None:
            return any(nic.state is NicState.FAULTY for nic in node.nics)
        case _:
            return False
