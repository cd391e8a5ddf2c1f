"""The two lifecycles of a node, every pair of each, and how a node comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import pytest
from msgspec.structs import replace

from statemachines import facts, node
from statemachines.device import Device, DeviceState
from statemachines.lifecycle import IllegalTransition, Word
from statemachines.nic import Nic, NicState
from statemachines.node import Node, NodeState, ServiceState
from statemachines.values import DeviceSpec, Inventory, NicSpec, NodeId, Reason
from tests.statemachines.matrix import every_pair, pair_id

N: Final = NodeId("n1")
NOW: Final = 1_000
CARDS: Final = (DeviceSpec(0, "H100", "GPU-a"), DeviceSpec(1, "H100", "GPU-b"))
NICS: Final = (NicSpec("ib0", 400_000), NicSpec("ib1", 400_000))
HAS: Final = Inventory("10.0.0.1", 64_000, 1_024, CARDS, NICS, boot_id="boot-1")
BASE: Final = Node(
    N, 2, NodeState.READY, ServiceState.IN_SERVICE, HAS,
    (Device(CARDS[0]), Device(CARDS[1])), (Nic(NICS[0]), Nic(NICS[1])), 10, 20, 30, "as before",
)  # fmt: skip
FACTS: Final[Mapping[type, Any]] = {
    type(fact): fact
    for fact in (
        facts.NodeJoined(N, 3, HAS),
        facts.NodeSuspected(N, 6_000),
        facts.NodeRecovered(N),
        facts.NodeLost(N, 2, "silent for 15 s"),
        facts.NodeCordoned(N, "fan"),
        facts.NodeUncordoned(N),
        facts.NodeDrainStarted(N, 9_000, "kernel"),
        facts.NodeDrained(N),
    )
}
L: Final = NodeState
S: Final = ServiceState
JOINED: Final = {"incarnation": 3, "state": L.READY, "joined_at_ms": NOW, "changed_at_ms": NOW}
SUSPECT: Final = {"state": L.SUSPECT, "changed_at_ms": NOW}
LOST: Final = {"state": L.LOST, "changed_at_ms": NOW, "message": "silent for 15 s"}
CORDONED: Final = {"service": S.CORDONED, "changed_at_ms": NOW, "message": "fan"}
OPENED: Final = {
    "service": S.IN_SERVICE,
    "changed_at_ms": NOW,
    "drain_deadline_ms": 0,
    "message": "",
}
DRAINING: Final = {
    "service": S.DRAINING,
    "changed_at_ms": NOW,
    "drain_deadline_ms": 9_000,
    "message": "kernel",
}
DRAINED: Final = {"service": S.DRAINED, "changed_at_ms": NOW, "drain_deadline_ms": 0}
LEGAL: Final[Mapping[tuple[Word, type], Mapping[str, Any]]] = {
    (L.READY, facts.NodeJoined): JOINED,
    (L.READY, facts.NodeSuspected): SUSPECT,
    (L.READY, facts.NodeLost): LOST,
    (L.SUSPECT, facts.NodeJoined): JOINED,
    (L.SUSPECT, facts.NodeRecovered): {"state": L.READY, "changed_at_ms": NOW},
    (L.SUSPECT, facts.NodeLost): LOST,
    (L.LOST, facts.NodeJoined): JOINED | {"message": ""},
    (S.IN_SERVICE, facts.NodeCordoned): CORDONED,
    (S.IN_SERVICE, facts.NodeDrainStarted): DRAINING,
    (S.CORDONED, facts.NodeUncordoned): OPENED,
    (S.CORDONED, facts.NodeDrainStarted): DRAINING,
    (S.DRAINING, facts.NodeUncordoned): OPENED,
    (S.DRAINING, facts.NodeDrainStarted): DRAINING,
    (S.DRAINING, facts.NodeDrained): DRAINED,
    (S.DRAINED, facts.NodeUncordoned): OPENED,
    (S.DRAINED, facts.NodeDrainStarted): DRAINING,
}
LIVENESS_FACTS: Final = (facts.NodeJoined, facts.NodeSuspected, facts.NodeRecovered, facts.NodeLost)


def test_every_fact_about_a_node_has_an_example_here_and_one_lifecycle() -> None:
    assert set(FACTS) == set(get_args(facts.NodeFact))
    service_facts = {kind for _, kind in node.SERVICE}
    assert {kind for _, kind in node.LIVENESS} == set(LIVENESS_FACTS)
    assert service_facts == set(FACTS) - set(LIVENESS_FACTS)


def check(before: Node, state: Word, kind: type) -> None:
    changes = LEGAL.get((state, kind))
    if changes is None:
        with pytest.raises(IllegalTransition, match=f"is {state}: {kind.__name__} is not legal"):
            node.advance(before, FACTS[kind], NOW)
        return
    assert node.advance(before, FACTS[kind], NOW) == replace(before, **changes)


@pytest.mark.parametrize(
    ("state", "kind"),
    [pair for pair in every_pair(L, facts.NodeFact) if pair[1] in LIVENESS_FACTS],
    ids=pair_id,
)
@pytest.mark.parametrize("service", list(S), ids=str)
def test_liveness_moves_by_itself_whatever_the_service(
    service: ServiceState, state: NodeState, kind: type
) -> None:
    check(replace(BASE, state=state, service=service), state, kind)


@pytest.mark.parametrize(
    ("state", "kind"),
    [pair for pair in every_pair(S, facts.NodeFact) if pair[1] not in LIVENESS_FACTS],
    ids=pair_id,
)
@pytest.mark.parametrize("liveness", list(L), ids=str)
def test_service_moves_by_itself_whatever_the_liveness(
    liveness: NodeState, state: ServiceState, kind: type
) -> None:
    check(replace(BASE, state=liveness, service=state), state, kind)


@pytest.mark.parametrize("liveness", list(L), ids=str)
@pytest.mark.parametrize("service", list(S), ids=str)
def test_only_a_ready_node_in_service_is_open(liveness: NodeState, service: ServiceState) -> None:
    opened = replace(BASE, state=liveness, service=service).open
    assert opened == ((liveness, service) == (L.READY, S.IN_SERVICE))


@pytest.mark.parametrize(
    ("state", "incarnation", "legal"),
    [
        (L.READY, 1, False),
        (L.READY, 2, True),
        (L.SUSPECT, 2, True),
        (L.LOST, 2, False),
        (L.LOST, 3, True),
    ],
)
def test_a_lost_node_comes_back_only_as_a_later_incarnation(
    state: NodeState, incarnation: int, legal: bool
) -> None:
    before, fact = replace(BASE, state=state), facts.NodeJoined(N, incarnation, HAS)
    if legal:
        assert node.advance(before, fact, NOW).incarnation == incarnation
    else:
        with pytest.raises(IllegalTransition, match=r"node n1 \(incarnation 2\)"):
            node.advance(before, fact, NOW)


def test_only_the_present_incarnation_can_be_lost() -> None:
    with pytest.raises(IllegalTransition, match=r"node n1 \(incarnation 2\)"):
        node.advance(BASE, facts.NodeLost(N, 1, "late"), NOW)


def test_a_first_join_makes_the_node_with_its_parts_in_order() -> None:
    has = replace(HAS, devices=CARDS[::-1], nics=NICS[::-1])
    assert node.join(facts.NodeJoined(N, 1, has), NOW) == Node(
        N, 1, L.READY, S.IN_SERVICE, has, BASE.devices, BASE.nics, NOW, NOW, 0, ""
    )


def test_a_known_fault_stays_with_the_card_and_the_port_that_have_it() -> None:
    worn = Reason("worn", "")
    bad = replace(
        BASE,
        devices=(Device(CARDS[0], DeviceState.FAULTY, worn), Device(CARDS[1])),
        nics=(Nic(NICS[0], NicState.FAULTY, worn), Nic(NICS[1])),
    )
    same = node.advance(bad, facts.NodeJoined(N, 2, HAS), NOW)
    assert (same.devices, same.nics) == (bad.devices, bad.nics)
    swapped = replace(
        HAS, devices=(DeviceSpec(0, "H100", "GPU-new"), CARDS[1]), nics=(NICS[1], NicSpec("eth0"))
    )
    repaired = node.advance(bad, facts.NodeJoined(N, 2, swapped), NOW)
    assert repaired.devices == (Device(swapped.devices[0]), Device(CARDS[1]))
    assert repaired.nics == (Nic(NicSpec("eth0")), Nic(NICS[1]))
