"""What becomes of a node and of what runs on it: attached, begun and ended runs, lost, drained.

Reports and verdicts both come here. A report of an end is taken whatever the incarnation: evidence is evidence.
"""

from __future__ import annotations

from typing import Final

from services.runtime import codec
from services.runtime.desired import another_boot
from services.scheduler import attempts
from services.scheduler.draft import Draft, UnfitError
from services.scheduler.wire import need, value
from statemachines.facts import NodeDrained, NodeJoined, NodeLost, RunStarted
from statemachines.node import Node, NodeState, ServiceState
from statemachines.run import RunState
from statemachines.values import Evidence, Inventory, NodeId, RunId
from tidemill.v1 import reports_pb2

# As the wire's rules have it; kept here too because capacity is added up from them.
CPU_MILLI_MAX: Final = 67_108_864
MEMORY_MIB_MAX: Final = 1_073_741_824
DEVICES_MAX: Final = 1024
# They are counted up one by one; after one near the end of its range a node could never come back.
INCARNATION_MAX: Final = 1 << 32
# What only an operator may vouch for, by a request.
_NOT_FROM_AGENTS: Final = frozenset({Evidence.OPERATOR_SAID})


def attached(draft: Draft, report: reports_pb2.Report) -> None:
    """An agent attached, with what its node has."""
    inventory = _inventory(report)
    node = draft.cluster.nodes.get(NodeId(report.node))
    if node is None:
        draft.record(NodeJoined(NodeId(report.node), report.incarnation, inventory))
        return
    rebooted = another_boot(node.inventory.boot_id, inventory.boot_id)
    if report.incarnation < node.incarnation or (
        report.incarnation == node.incarnation and (node.state is NodeState.LOST or rebooted)
    ):
        # The gateway told it to come as a higher one. Attaches of one incarnation come in any order, so that of an
        # earlier boot must not pass for a reboot: it would end runs that live.
        draft.ignore("old_incarnation")
        return
    if rebooted:
        _rebooted(draft, node)
    if (
        report.incarnation == node.incarnation
        and node.state is NodeState.READY
        and inventory == node.inventory
    ):
        draft.ignore("attached_again")
        return
    draft.record(NodeJoined(node.id, report.incarnation, inventory))


def _inventory(report: reports_pb2.Report) -> Inventory:
    inventory = value(Inventory, report.node_attached.inventory)
    need(
        1 <= report.incarnation <= INCARNATION_MAX, "an incarnation is at least 1, and no timestamp"
    )
    need(0 <= inventory.cpu_milli <= CPU_MILLI_MAX, "inventory: cpu_milli is out of range")
    need(0 <= inventory.memory_mib <= MEMORY_MIB_MAX, "inventory: memory_mib is out of range")
    devices = {device.index for device in inventory.devices}
    need(len(devices) == len(inventory.devices) <= DEVICES_MAX, "inventory: repeated device index")
    need(all(0 <= index < DEVICES_MAX for index in devices), "inventory: device index out of range")
    need(all(device.model for device in inventory.devices), "inventory: a device without a model")
    names = {nic.name for nic in inventory.nics}
    need(len(names) == len(inventory.nics) <= DEVICES_MAX, "inventory: repeated nic name")
    return inventory


def _rebooted(draft: Draft, node: Node) -> None:
    for run in sorted(draft.cluster.usage[node.id].runs):
        attempts.run_ended(
            draft, draft.cluster.runs[run], Evidence.NODE_REBOOTED, f"node {node.id} started anew"
        )


def run_began(draft: Draft, report: reports_pb2.Report) -> None:
    """The processes of a run exist."""
    run = draft.cluster.runs.get(RunId(report.run_began.run))
    if run is None or run.node != report.node:
        draft.ignore("unknown_run")
        return
    if run.state is not RunState.PLACED:
        draft.ignore("repeated_begin" if run.state is RunState.RUNNING else "late_begin")
        return
    draft.record(RunStarted(run.id))
    attempts.started(draft, run.job)


def run_finished(draft: Draft, report: reports_pb2.Report) -> None:
    """Nothing of a run is left on its node."""
    said = report.run_finished
    try:
        evidence = codec.decode_enum(Evidence, said.evidence)
    except (codec.CodecError, codec.UnknownFactError) as error:
        raise UnfitError(f"evidence: {error}") from error
    need(evidence not in _NOT_FROM_AGENTS, f"an agent cannot vouch by {evidence}")
    run = draft.cluster.runs.get(RunId(said.run))
    if run is None or run.node != report.node:
        draft.ignore("unknown_run")
        return
    if run.state is RunState.ENDED:
        draft.ignore("repeated_end")
        return
    attempts.run_ended(
        draft, run, evidence, said.message, exit_code=said.exit_code, signal=said.signal
    )


def lost(draft: Draft, node: Node, message: str) -> None:
    """A node is given up: its runs may live on, the work goes on elsewhere."""
    draft.record(NodeLost(node.id, node.incarnation, message))
    abandon(draft, node.id)


def abandon(draft: Draft, node: NodeId) -> None:
    """What ran on a lost node; again and again to the same end, for a node may hold more than one entry can."""
    for attempt in attempts.live_on(draft.cluster, node):
        attempts.node_lost(draft, attempt, node)


def drained(draft: Draft, node_id: NodeId) -> None:
    """A draining node is drained once nothing runs there any more."""
    node = draft.cluster.nodes.get(node_id)
    if (
        node is not None
        and node.service is ServiceState.DRAINING
        and not draft.cluster.usage[node_id].runs
    ):
        draft.record(NodeDrained(node_id))
