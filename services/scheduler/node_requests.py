"""Cordon, uncordon, drain, confirm dead, remove: what operators ask of nodes. A wish that is true already is granted."""

from __future__ import annotations

from typing import Final

from services.scheduler import attempts
from services.scheduler.answers import RefusedError
from services.scheduler.draft import Draft
from services.scheduler.wire import DURATION_MS_MAX
from statemachines.attempt import Attempt, AttemptState
from statemachines.facts import NodeCordoned, NodeDrainStarted, NodeRemoved, NodeUncordoned
from statemachines.node import Node, NodeState, ServiceState
from statemachines.run import RunState
from statemachines.values import Cause, Evidence, JobNext, NodeId
from tidemill.v1 import requests_pb2

MESSAGE_CHARS: Final = 1024


def _known(draft: Draft, name: str) -> Node:
    node = draft.cluster.nodes.get(NodeId(name))
    if node is None:
        raise RefusedError("unknown_node", f"there is no node {name[:64]}", field="node")
    return node


def cordon(draft: Draft, said: requests_pb2.CordonNode) -> None:
    """Nothing new is placed there; raises RefusedError."""
    node = _known(draft, said.node)
    if node.service is ServiceState.IN_SERVICE:  # Else it takes nothing new already.
        draft.record(NodeCordoned(node.id, said.message[:MESSAGE_CHARS]))


def uncordon(draft: Draft, said: requests_pb2.UncordonNode) -> None:
    """In service again; a drain that is under way is called off. Raises RefusedError."""
    node = _known(draft, said.node)
    if node.service is not ServiceState.IN_SERVICE:
        draft.record(NodeUncordoned(node.id))


def drain(draft: Draft, said: requests_pb2.DrainNode) -> None:
    """Nothing new, and what runs there saves, stops and goes elsewhere by the deadline; raises RefusedError."""
    node = _known(draft, said.node)
    if not 0 <= said.within_ms <= DURATION_MS_MAX:
        raise RefusedError("impossible", f"within_ms: 0 to {DURATION_MS_MAX} ms", field="within_ms")
    if node.service is ServiceState.DRAINED:
        return
    begin_drain(draft, node.id, said.within_ms, said.message)


def begin_drain(draft: Draft, node: NodeId, within_ms: int, message: str) -> None:
    """What runs there is asked for a save where there is time for one, else stopped."""
    deadline_ms = draft.now_ms + within_ms
    live = attempts.live_on(draft.cluster, node)
    # Looked at before the drain is recorded, which makes an ask that was called off look wanted: its deadline may have
    # passed, and the trainer's answer to it may have been ignored.
    asked = {each.job for each in live if attempts.save_wanted(draft.cluster, each)}
    draft.record(NodeDrainStarted(node, deadline_ms, message[:MESSAGE_CHARS]))
    for attempt in live:
        if attempt.state is not AttemptState.RUNNING or within_ms <= 0:
            move_away(draft, attempt, node)
        elif attempt.job not in asked or attempt.ask_deadline_ms > deadline_ms:
            # Else it will have gone by then.
            attempts.ask_for_save(
                draft,
                attempt,
                cause=Cause.DRAINED,
                then=JobNext.QUEUED,
                deadline_ms=deadline_ms,
            )


def move_away(draft: Draft, attempt: Attempt, node: NodeId) -> None:
    """Stop an attempt so that its job is placed elsewhere; one that is stopping already will be gone."""
    if attempt.state is not AttemptState.STOPPING:
        attempts.stop(
            draft, attempt, Cause.DRAINED, f"node {node} is being drained", JobNext.QUEUED
        )


def confirm_dead(draft: Draft, said: requests_pb2.ConfirmNodeDead) -> None:
    """An operator vouches that nothing of ours lives on a lost node; raises RefusedError."""
    node = _known(draft, said.node)
    if node.state is not NodeState.LOST:
        raise RefusedError(
            "bad_state",
            f"node {node.id} is {node.state}, not lost: its agent still answers for what runs there; drain it instead",
            field="node",
        )
    for name in sorted(draft.cluster.usage[node.id].runs):
        run = draft.cluster.runs[name]
        if run.state is RunState.LOST:
            why = said.message[:MESSAGE_CHARS] or "no word why"
            attempts.run_ended(draft, run, Evidence.OPERATOR_SAID, f"{draft.by}: {why}")


def remove(draft: Draft, said: requests_pb2.RemoveNode) -> None:
    """Forget a node that is lost or out of service, and empty; raises RefusedError."""
    node = _known(draft, said.node)
    if node.state is not NodeState.LOST and node.service is ServiceState.IN_SERVICE:
        raise RefusedError(
            "bad_state", f"node {node.id} is in service: drain it first", field="node"
        )
    runs = draft.cluster.usage[node.id].runs
    if runs:
        raise RefusedError(
            "bad_state",
            f"node {node.id} still holds {len(runs)} runs: drain it, or confirm that it is dead",
            field="node",
        )
    draft.record(NodeRemoved(node.id))
