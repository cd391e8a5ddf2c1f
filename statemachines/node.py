"""The two lifecycles of a node: liveness (is it there) and service (may it be used). Both must be good to place there.

Holds devices and nics, which have lifecycles of their own. Never holds what is granted: the cluster does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import unique
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from statemachines.device import Device
from statemachines.facts import (
    NodeCordoned,
    NodeDrained,
    NodeDrainStarted,
    NodeFact,
    NodeJoined,
    NodeLost,
    NodeRecovered,
    NodeSuspected,
    NodeUncordoned,
)
from statemachines.lifecycle import IllegalTransition, Word, next_state
from statemachines.nic import Nic
from statemachines.values import Inventory, NodeId


@unique
class NodeState(Word):
    """Liveness."""

    READY = "ready"
    SUSPECT = "suspect"
    LOST = "lost"


@unique
class ServiceState(Word):
    """Whether an operator lets it be used."""

    IN_SERVICE = "in_service"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"


# A first NodeJoined makes the node (see `join`).
LIVENESS: Final[Mapping[tuple[NodeState, type], NodeState]] = {
    (NodeState.READY, NodeJoined): NodeState.READY,
    (NodeState.READY, NodeSuspected): NodeState.SUSPECT,
    (NodeState.READY, NodeLost): NodeState.LOST,
    (NodeState.SUSPECT, NodeJoined): NodeState.READY,
    (NodeState.SUSPECT, NodeRecovered): NodeState.READY,
    (NodeState.SUSPECT, NodeLost): NodeState.LOST,
    # Only as a new incarnation, with an inventory.
    (NodeState.LOST, NodeJoined): NodeState.READY,
}
SERVICE: Final[Mapping[tuple[ServiceState, type], ServiceState]] = {
    (ServiceState.IN_SERVICE, NodeCordoned): ServiceState.CORDONED,
    (ServiceState.IN_SERVICE, NodeDrainStarted): ServiceState.DRAINING,
    (ServiceState.CORDONED, NodeUncordoned): ServiceState.IN_SERVICE,
    (ServiceState.CORDONED, NodeDrainStarted): ServiceState.DRAINING,
    (ServiceState.DRAINING, NodeUncordoned): ServiceState.IN_SERVICE,
    (ServiceState.DRAINING, NodeDrainStarted): ServiceState.DRAINING,
    (ServiceState.DRAINING, NodeDrained): ServiceState.DRAINED,
    (ServiceState.DRAINED, NodeUncordoned): ServiceState.IN_SERVICE,
    (ServiceState.DRAINED, NodeDrainStarted): ServiceState.DRAINING,
}


class Node(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One machine of the cell; `devices` are sorted by index, `nics` by name."""

    id: NodeId
    incarnation: int
    state: NodeState
    service: ServiceState
    inventory: Inventory
    devices: tuple[Device, ...]
    nics: tuple[Nic, ...]
    joined_at_ms: int
    changed_at_ms: int
    drain_deadline_ms: int
    message: str

    @property
    def open(self) -> bool:
        """New runs may be placed here."""
        return self.state is NodeState.READY and self.service is ServiceState.IN_SERVICE


def join(fact: NodeJoined, at_ms: int) -> Node:
    """The node as it begins."""
    return Node(
        fact.node, fact.incarnation, NodeState.READY, ServiceState.IN_SERVICE, fact.inventory,
        _devices(fact.inventory, ()), _nics(fact.inventory, ()), at_ms, at_ms, 0, "",
    )  # fmt: skip


def advance(node: Node, fact: NodeFact, at_ms: int) -> Node:
    """Apply one recorded fact; raises IllegalTransition."""
    match fact:
        case NodeJoined():
            return _joined_again(node, fact, at_ms)
        case NodeSuspected() | NodeRecovered():
            return replace(node, state=_liveness(node, fact), changed_at_ms=at_ms)
        case NodeLost(incarnation=incarnation, message=message):
            if incarnation != node.incarnation:
                raise IllegalTransition(
                    f"node {node.id} (incarnation {node.incarnation})", node.state, fact
                )
            return replace(node, state=_liveness(node, fact), changed_at_ms=at_ms, message=message)
        case NodeCordoned(message=message):
            return replace(node, service=_service(node, fact), changed_at_ms=at_ms, message=message)
        case NodeUncordoned() | NodeDrained():
            message = node.message if isinstance(fact, NodeDrained) else ""
            return replace(
                node,
                service=_service(node, fact),
                changed_at_ms=at_ms,
                drain_deadline_ms=0,
                message=message,
            )
        case NodeDrainStarted(deadline_ms=deadline_ms, message=message):
            return replace(
                node,
                service=_service(node, fact),
                changed_at_ms=at_ms,
                drain_deadline_ms=deadline_ms,
                message=message,
            )
        case _:
            assert_never(fact)


def _joined_again(node: Node, fact: NodeJoined, at_ms: int) -> Node:
    """A lost node comes back only as a higher incarnation; another may refresh its inventory."""
    lowest = node.incarnation + 1 if node.state is NodeState.LOST else node.incarnation
    if fact.incarnation < lowest:
        raise IllegalTransition(
            f"node {node.id} (incarnation {node.incarnation})", node.state, fact
        )
    return replace(
        node,
        incarnation=fact.incarnation,
        state=_liveness(node, fact),
        inventory=fact.inventory,
        devices=_devices(fact.inventory, node.devices),
        nics=_nics(fact.inventory, node.nics),
        joined_at_ms=at_ms,
        changed_at_ms=at_ms,
        message="" if node.state is NodeState.LOST else node.message,
    )


def _devices(inventory: Inventory, before: tuple[Device, ...]) -> tuple[Device, ...]:
    """Known faults stay with the card that has them."""
    known = {(device.spec.index, device.spec.uuid): device for device in before}
    return tuple(
        [
            replace(known[(spec.index, spec.uuid)], spec=spec)
            if (spec.index, spec.uuid) in known
            else Device(spec)
            for spec in sorted(inventory.devices, key=lambda spec: spec.index)
        ]
    )


def _nics(inventory: Inventory, before: tuple[Nic, ...]) -> tuple[Nic, ...]:
    known = {nic.spec.name: nic for nic in before}
    return tuple(
        [
            replace(known[spec.name], spec=spec) if spec.name in known else Nic(spec)
            for spec in sorted(inventory.nics, key=lambda spec: spec.name)
        ]
    )


def _liveness(node: Node, fact: NodeFact) -> NodeState:
    return next_state(LIVENESS, node.state, fact, "node", node.id)


def _service(node: Node, fact: NodeFact) -> ServiceState:
    return next_state(SERVICE, node.service, fact, "node", node.id)
