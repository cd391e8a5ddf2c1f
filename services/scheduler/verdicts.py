"""Verdicts: the health processor's judgement, a hint until it is recorded here. Repeats and old ones are weather.

Facts of a verdict carry no `by`: nobody asked; the input that they name tells an audit which judge it was. While an
incident is on (mass silence), no node is lost: the processor says so again when it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from services.scheduler import attempts, node_requests, nodes
from services.scheduler.draft import Draft, UnfitError
from services.scheduler.exit_codes import Blame
from services.scheduler.wire import DURATION_MS_MAX, need, need_name, parse, value
from statemachines.attempt import AttemptState
from statemachines.cluster import Cluster
from statemachines.device import DeviceState
from statemachines.facts import (
    BreakerClosed,
    BreakerOpened,
    DeviceDegraded,
    DeviceFact,
    DeviceFaulted,
    DeviceRecovered,
    NicDegraded,
    NicFact,
    NicFaulted,
    NicRecovered,
    NodeCordoned,
    NodeRecovered,
    NodeSuspected,
)
from statemachines.nic import NicState
from statemachines.node import Node, NodeState, ServiceState
from statemachines.values import Cause, JobId, NodeId, Reason
from tidemill.v1 import verdicts_pb2

MESSAGE_CHARS: Final = 1024


def decide(draft: Draft, stored: bytes) -> None:
    """Turn one record of <cell>.verdicts into facts, or none; raises UnfitError."""
    verdict = parse(verdicts_pb2.Verdict, stored)
    kind = verdict.WhichOneof("kind")
    need(kind is not None, "a verdict of no kind that this version knows")
    assert kind is not None
    _HANDLERS[kind](draft, getattr(verdict, kind))


def _known(draft: Draft, name: str, incarnation: int) -> Node | None:
    """The node, if this is its present incarnation."""
    node = draft.cluster.nodes.get(NodeId(name))
    if node is None or node.incarnation != incarnation:
        draft.ignore("unknown_node" if node is None else "old_incarnation")
        return None
    return node


# --- nodes


def _suspect(draft: Draft, said: verdicts_pb2.NodeSuspect) -> None:
    node = _known(draft, said.node, said.incarnation)
    if node is None:
        return
    if node.state is not NodeState.READY:
        draft.ignore("repeated_verdict")
        return
    draft.record(NodeSuspected(node.id, said.silent_ms))


def _gone(draft: Draft, said: verdicts_pb2.NodeGone) -> None:
    node = _known(draft, said.node, said.incarnation)
    if node is None:
        return
    if node.state is NodeState.LOST:
        draft.ignore("repeated_verdict")
        nodes.abandon(draft, node.id)  # A leader that died amid it left some of them to us.
    elif draft.cluster.incident is not None:
        draft.ignore("held_back_by_incident")
    else:
        nodes.lost(draft, node, said.message[:MESSAGE_CHARS])


def _back(draft: Draft, said: verdicts_pb2.NodeBack) -> None:
    node = _known(draft, said.node, said.incarnation)
    if node is None:
        return
    if node.state is not NodeState.SUSPECT:
        draft.ignore("repeated_verdict")
        return
    draft.record(NodeRecovered(node.id))


def _silence(draft: Draft, said: verdicts_pb2.MassSilence) -> None:
    need_name(said.incident, "the incident")
    if draft.cluster.incident is not None:
        draft.ignore("repeated_verdict")
        return
    draft.record(BreakerOpened(said.incident, said.message[:MESSAGE_CHARS], said.nodes))


def _silence_over(draft: Draft, said: verdicts_pb2.SilenceOver) -> None:
    incident = draft.cluster.incident
    if incident is None or incident.incident != said.incident:
        draft.ignore("repeated_verdict")
        return
    draft.record(BreakerClosed(said.incident))


def _unfit(draft: Draft, said: verdicts_pb2.NodeUnfit) -> None:
    node = _known(draft, said.node, said.incarnation)
    if node is None:
        return
    if node.service is not ServiceState.IN_SERVICE:
        draft.ignore("repeated_verdict")
        return
    need(0 <= said.drain_ms <= DURATION_MS_MAX, f"drain_ms: 0 to {DURATION_MS_MAX} ms")
    if said.drain_ms:
        node_requests.begin_drain(draft, node.id, said.drain_ms, said.message)
    else:
        draft.record(NodeCordoned(node.id, said.message[:MESSAGE_CHARS]))


# --- jobs


def _hung(draft: Draft, said: verdicts_pb2.JobHung) -> None:
    attempt = attempts.live(draft.cluster, JobId(said.job))
    if attempt is None or attempt.number != said.attempt:
        draft.ignore("old_attempt")
        return
    if attempt.state is not AttemptState.RUNNING:
        draft.ignore("repeated_verdict")
        return
    cause, blame = _why_hung(draft.cluster, said)
    message = f"no progress for {said.silent_ms // 1000} s after step {said.step}; rank {said.rank} fell silent first"
    attempts.fail(draft, attempt, cause, blame, message)


def _why_hung(cluster: Cluster, said: verdicts_pb2.JobHung) -> tuple[Cause, Blame]:
    """The port that is named, and known to be faulty, explains it; else it may as well be the program's.

    A faulty port alone does not: it may be older than the attempt, which did without.
    """
    node = cluster.nodes.get(NodeId(said.node))
    nics = node.nics if node is not None else ()
    if any(nic.spec.name == said.nic and nic.state is NicState.FAULTY for nic in nics):
        return Cause.NIC_FAULT, Blame.CELL
    return Cause.HUNG, Blame.UNCLEAR


# --- devices and nics


_DEVICE_STATES: Final[Mapping[int, DeviceState]] = {
    verdicts_pb2.CONDITION_HEALTHY: DeviceState.HEALTHY,
    verdicts_pb2.CONDITION_DEGRADED: DeviceState.DEGRADED,
    verdicts_pb2.CONDITION_FAULTY: DeviceState.FAULTY,
}
_NIC_STATES: Final[Mapping[int, NicState]] = {
    verdicts_pb2.CONDITION_HEALTHY: NicState.HEALTHY,
    verdicts_pb2.CONDITION_DEGRADED: NicState.DEGRADED,
    verdicts_pb2.CONDITION_FAULTY: NicState.FAULTY,
}


def _device(draft: Draft, said: verdicts_pb2.DeviceVerdict) -> None:
    wanted = _DEVICE_STATES.get(said.condition)
    if wanted is None:
        raise UnfitError(f"condition {said.condition} is none that this version knows")
    reason = _reason(said.reason)
    node = _known(draft, said.node, said.incarnation)
    if node is None:
        return
    device = next((each for each in node.devices if each.spec.index == said.index), None)
    if device is None or device.state is wanted:
        draft.ignore("unknown_device" if device is None else "repeated_verdict")
        return
    fact: DeviceFact
    match wanted:
        case DeviceState.HEALTHY:
            fact = DeviceRecovered(node.id, said.index)
        case DeviceState.DEGRADED:
            fact = DeviceDegraded(node.id, said.index, reason)
        case DeviceState.FAULTY:
            fact = DeviceFaulted(node.id, said.index, reason)
    draft.record(fact)
    if wanted is DeviceState.FAULTY:
        _evict_from_device(draft, node, said.index, reason)


def _evict_from_device(draft: Draft, node: Node, index: int, reason: Reason) -> None:
    """Its holder can get nothing right from it any more."""
    holder = draft.cluster.usage[node.id].holders.get(index)
    run = draft.cluster.runs[holder] if holder is not None else None
    attempt = attempts.live(draft.cluster, run.job) if run is not None else None
    if run is None or attempt is None or attempt.number != run.attempt:
        return
    if attempt.state is not AttemptState.STOPPING:
        message = f"device {index} of {node.id} is faulty: {reason.message or reason.code}"
        attempts.fail(draft, attempt, Cause.DEVICE_FAULT, Blame.CELL, message)


def _nic(draft: Draft, said: verdicts_pb2.NicVerdict) -> None:
    wanted = _NIC_STATES.get(said.condition)
    if wanted is None:
        raise UnfitError(f"condition {said.condition} is none that this version knows")
    reason = _reason(said.reason)
    node = _known(draft, said.node, said.incarnation)
    if node is None:
        return
    nic = next((each for each in node.nics if each.spec.name == said.nic), None)
    if nic is None or nic.state is wanted:
        draft.ignore("unknown_nic" if nic is None else "repeated_verdict")
        return
    fact: NicFact
    match wanted:
        case NicState.HEALTHY:
            fact = NicRecovered(node.id, said.nic)
        case NicState.DEGRADED:
            fact = NicDegraded(node.id, said.nic, reason)
        case NicState.FAULTY:
            fact = NicFaulted(node.id, said.nic, reason)
    draft.record(fact)
    if wanted is NicState.FAULTY:
        _evict_from_unlinked(draft, node.id, reason)


def _evict_from_unlinked(draft: Draft, node_id: NodeId, reason: Reason) -> None:
    """With no working interface left, members there cannot reach the others; with one, a stall decides (JobHung)."""
    if any(nic.state is not NicState.FAULTY for nic in draft.cluster.nodes[node_id].nics):
        return
    for attempt in attempts.live_on(draft.cluster, node_id):
        if len(attempt.runs) > 1 and attempt.state is not AttemptState.STOPPING:
            message = f"node {node_id} has no working network: {reason.message or reason.code}"
            attempts.fail(draft, attempt, Cause.NIC_FAULT, Blame.CELL, message)


def _reason(said: Any) -> Reason:
    reason = value(Reason, said)
    return Reason(
        reason.code[:64], reason.message[:MESSAGE_CHARS], reason.blockers[:16], reason.missing
    )


_HANDLERS: Final[dict[str, Callable[[Draft, Any], None]]] = {
    "node_suspect": _suspect,
    "node_gone": _gone,
    "node_back": _back,
    "mass_silence": _silence,
    "silence_over": _silence_over,
    "node_unfit": _unfit,
    "job_hung": _hung,
    "device": _device,
    "nic": _nic,
}
