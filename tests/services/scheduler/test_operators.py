"""Nodes cordoned, confirmed dead and removed by operators, also from under gangs."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from statemachines import facts
from statemachines.values import Cause, JobNext
from tests.services.scheduler.begun import kinds, reason, two_nodes
from tests.services.scheduler.cell import N1, B, Cell, spec
from tidemill.v1 import requests_pb2, verdicts_pb2

CORDON, UNCORDON = requests_pb2.CordonNode(node="n1"), requests_pb2.UncordonNode(node="n1")
DRAIN, REMOVE = requests_pb2.DrainNode(node="n1"), requests_pb2.RemoveNode(node="n1")
DEAD = requests_pb2.ConfirmNodeDead(node="n1")


@pytest.mark.parametrize(
    ("before", "asked", "code", "service"),
    [
        ([], CORDON, "", "cordoned"),
        ([CORDON], CORDON, "", "cordoned"),
        ([DRAIN], CORDON, "", "drained"),
        ([], UNCORDON, "", "in_service"),
        ([CORDON], UNCORDON, "", "in_service"),
        ([DRAIN], UNCORDON, "", "in_service"),
        ([CORDON], DRAIN, "", "drained"),
        ([DRAIN], DRAIN, "", "drained"),
        ([], requests_pb2.DrainNode(node="n1", within_ms=-1), "impossible", "in_service"),
        ([], requests_pb2.DrainNode(node="n1", within_ms=2**62), "impossible", "in_service"),
        ([], DEAD, "bad_state", "in_service"),
        ([], REMOVE, "bad_state", "in_service"),
        ([CORDON], REMOVE, "", "gone"),
        ([DRAIN], REMOVE, "", "gone"),
    ],
    ids=[
        "cordon", "cordon_cordoned", "cordon_drained", "uncordon", "uncordon_cordoned", "uncordon_drained",
        "drain_cordoned", "drain_drained", "drain_before_now", "drain_for_ever", "dead", "remove",
        "remove_cordoned", "remove_drained",
    ],
)  # fmt: skip
def test_what_operators_ask_of_an_idle_node(
    before: list[Message], asked: Message, code: str, service: str
) -> None:
    cell = Cell()
    cell.nodes("n1")
    for each in before:
        cell.ask(each)
        cell.step()
    key = cell.ask(asked)
    cell.step()
    node = cell.cluster.nodes.get(N1)
    assert (cell.answer(key), str(node.service) if node else "gone") == (code, service)


@pytest.mark.parametrize(
    "asked", [CORDON, UNCORDON, DRAIN, DEAD, REMOVE], ids=lambda asked: asked.DESCRIPTOR.name
)
def test_a_node_that_is_not_there_is_unknown(asked: Message) -> None:
    cell = Cell()
    key = cell.ask(asked)
    cell.step()
    assert cell.answer(key) == "unknown_node"


def test_a_node_that_holds_runs_is_not_removed() -> None:
    cell = two_nodes()
    cell.gone("n1")
    cell.ask(REMOVE)
    refused = cell.step()[-1]
    assert isinstance(refused, facts.RequestRefused)
    assert (refused.code, refused.message) == (
        "bad_state",
        "node n1 still holds 1 runs: drain it, or confirm that it is dead",
    )


def half_ended(*, ask_drain: bool = False) -> Cell:
    """Gang `a` of which one member has ended, on a node that has been removed since."""
    cell = Cell()
    cell.nodes("n1", "n2", devices=1)
    cell.running("a", spec(members=2))
    if ask_drain:
        cell.ask(requests_pb2.DrainNode(node="n2", within_ms=60_000))
    cell.ended("a.1.0")
    cell.ask(CORDON)
    cell.ask(REMOVE)
    cell.step()
    assert N1 not in cell.cluster.nodes
    return cell


def test_a_member_that_fails_after_another_members_node_was_removed_is_in_doubt() -> None:
    """What was taken away may have been what failed it."""
    cell = half_ended()
    cell.ended("a.1.1", 1)
    (_, ended, *_) = cell.step()
    assert isinstance(ended, facts.AttemptEnded)
    assert (ended.cause, ended.next) == (Cause.PROGRAM_FAILED, JobNext.QUEUED)


def test_a_gang_that_hangs_after_the_node_of_a_member_was_removed_is_stopped() -> None:
    cell = half_ended()
    cell.verdict(verdicts_pb2.JobHung(job="a", attempt=1, silent_ms=600_000, step=7))
    (stopping,) = cell.step()
    assert isinstance(stopping, facts.AttemptStopping)
    assert stopping.cause is Cause.HUNG


def test_a_leader_takes_over_a_drain_under_a_gang_that_a_removed_node_was_part_of() -> None:
    cell = half_ended(ask_drain=True)
    cell.take_over()
    assert facts.AttemptStopping in kinds(cell.step(after_ms=60_000))


def test_nothing_new_goes_to_a_cordoned_node() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.ask(CORDON)
    cell.submit("a")
    cell.step()
    assert (cell.state("a"), reason(cell)) == ("queued", "capable_nodes_not_open")
    cell.ask(UNCORDON)
    cell.step()
    assert cell.state("a") == "starting"
    assert B not in cell.cluster.jobs
