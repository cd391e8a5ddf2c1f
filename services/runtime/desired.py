"""What a node must run: a pure function of the fold, with the digest and the changes that travel to its agent.

The gateway computes sets and changes, the agent applies and checks them, so both sides use this file. It never sends,
stores or decides anything: an order says what the log already says.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from services.runtime.codec import encode_value
from statemachines.attempt import Attempt, AttemptState
from statemachines.cluster import Cluster
from statemachines.node import NodeState
from statemachines.policy import Policy
from statemachines.run import Run, RunState
from statemachines.values import Cause, JobSpec, NodeId, RunId
from tidemill.v1 import common_pb2
from tidemill.v1 import node_service_pb2 as wire

Orders: TypeAlias = Mapping[str, wire.RunOrder]
# (job, attempt) -> the token its trainer shows; from services.runtime.tokens and the cell's key.
TokenOf: TypeAlias = Callable[[str, int], str]

_GOES_ON: Final = frozenset({AttemptState.STARTING, AttemptState.RUNNING})
# A gang stopped for these stands still: it has nothing to save, only to say where it stood.
_STANDS_STILL: Final = frozenset({Cause.HUNG, Cause.NIC_FAULT})
_STANDING_GRACE_MS: Final = 5_000


def desired(cluster: Cluster, node: NodeId, token_of: TokenOf) -> dict[str, wire.RunOrder]:
    """Orders by run, sorted by run: every run that is open on the node. Empty while the node is lost or unknown.

    A run that was lost and whose node has come back is ordered to stop, or to run on if its attempt still goes on.
    """
    known = cluster.nodes.get(node)
    if known is None or known.state is NodeState.LOST:
        return {}
    return {
        name: _order(cluster, cluster.runs[name], token_of)
        for name in sorted(cluster.usage[node].runs)
    }


def set_digest(orders: Orders) -> bytes:
    """SHA-256 over each run in order: u32 length and name, then the SHA-256 of its order's deterministic bytes."""
    whole = hashlib.sha256()
    for run in sorted(orders):
        name = run.encode()
        whole.update(struct.pack(">I", len(name)) + name)
        whole.update(hashlib.sha256(orders[run].SerializeToString(deterministic=True)).digest())
    return whole.digest()


def full_set(node: str, term: int, offset: int, orders: Orders) -> wire.DesiredSet:
    """Everything the node must run, as of an entry."""
    return wire.DesiredSet(
        node=node,
        term=term,
        offset=offset,
        full=True,
        changed=orders.values(),
        digest=set_digest(orders),
    )


def changes(
    node: str, term: int, offset: int, *, before: Orders, after: Orders
) -> wire.DesiredSet | None:
    """From one set to another, with the digest of the whole; None when they are equal."""
    changed = [order for run, order in after.items() if before.get(run) != order]
    removed = sorted(before.keys() - after.keys())
    if not changed and not removed:
        return None
    return wire.DesiredSet(
        node=node,
        term=term,
        offset=offset,
        changed=changed,
        removed=removed,
        digest=set_digest(after),
    )


def applied(before: Orders, received: wire.DesiredSet) -> dict[str, wire.RunOrder] | None:
    """The set after a full set or a change; None when its digest is not the one that was sent: ask for a full one."""
    after = {} if received.full else dict(before)
    for run in received.removed:
        after.pop(run, None)
    for order in received.changed:
        after[order.run] = order
    return after if set_digest(after) == received.digest else None


def another_boot(recorded: str, attaching: str) -> bool:
    """Whether a node that attaches has been started anew since the boot that is recorded: a new incarnation is due."""
    return bool(recorded and attaching and recorded != attaching)


def fence_after_ms(spec: JobSpec, policy: Policy) -> int:
    """How long an agent may be cut off before it kills such a run by itself; 0: never."""
    if spec.overlap_safe:
        return 0
    return max(spec.fence_after_ms or policy.fence_after_ms, 0)


def grace_ms(spec: JobSpec, policy: Policy, stopped_for: Cause | None) -> int:
    """From the stop signal to the kill: what the job asks for, else the cell's, and little of it for who stands still."""
    if spec.grace_ms or stopped_for not in _STANDS_STILL:
        return spec.grace_ms or policy.grace_ms
    return min(policy.grace_ms, _STANDING_GRACE_MS)


def _order(cluster: Cluster, run: Run, token_of: TokenOf) -> wire.RunOrder:
    job = cluster.jobs[run.job]
    attempt = cluster.find_attempt(run.job, run.attempt)
    assert attempt is not None, f"run {run.id} is open, so its attempt is kept"
    processes, first = _ranks(job.spec, run.rank)
    goes_on = attempt.number == job.attempt and attempt.state in _GOES_ON
    return wire.RunOrder(
        run=run.id,
        job=run.job,
        attempt=run.attempt,
        rank=run.rank,
        role=run.role,
        action=wire.RUN_ACTION_RUN if goes_on else wire.RUN_ACTION_STOP,
        grace_ms=grace_ms(job.spec, cluster.policy, attempt.stop_cause),
        devices=[common_pb2.Grant(index=grant.index, milli=grant.milli) for grant in run.devices],
        cpu_milli=run.cpu_milli,
        memory_mib=run.memory_mib,
        launch=job.spec.launch,
        members=len(attempt.runs),
        processes=processes,
        world_size=sum(role.count * (role.processes or 1) for role in job.spec.roles),
        first_global_rank=first,
        resume=common_pb2.ResumePoint(**encode_value(attempt.resume)),
        token=token_of(run.job, run.attempt),
        fence_after_ms=fence_after_ms(job.spec, cluster.policy),
        overlap_safe=job.spec.overlap_safe,
        name=job.spec.name,
        # A lost run may have lived: only its agent can tell, by looking.
        started=run.started_at_ms > 0 or run.state is RunState.LOST,
        **_gang(cluster, attempt),
        **_early_save(attempt),
    )


def _ranks(spec: JobSpec, rank: int) -> tuple[int, int]:
    """(processes of this member, global rank of its first): ranks are given role by role, in order."""
    members, processes = 0, 0
    for role in spec.roles:
        each = role.processes or 1
        if rank < members + role.count:
            return each, processes + (rank - members) * each
        members += role.count
        processes += role.count * each
    raise AssertionError(f"rank {rank} is outside the gang of {members}")


def _gang(cluster: Cluster, attempt: Attempt) -> dict[str, Any]:
    """Who the members are, in rank order, and where they meet."""
    members = sorted((cluster.runs[run] for run in attempt.runs), key=lambda run: run.rank)
    first = cluster.nodes.get(members[0].node)
    address = first.inventory.address if first is not None else ""
    return {
        "gang_nodes": [run.node for run in members],
        "master_address": address or members[0].node,
        "master_port": attempt.master_port,
    }


def _early_save(attempt: Attempt) -> dict[str, Any]:
    return {
        "save_ask": attempt.ask,
        "save_at_step": attempt.ask_step,
        "stop_after_save": attempt.ask > 0,
    }


def nodes_of(cluster: Cluster, run: RunId) -> tuple[NodeId, ...]:
    """Nodes of the whole gang of a run: what must be looked at again when one member's address changes."""
    placed = cluster.runs[run]
    attempt = cluster.find_attempt(placed.job, placed.attempt)
    assert attempt is not None, f"run {run} is open, so its attempt is kept"
    return tuple([cluster.runs[member].node for member in attempt.runs])
