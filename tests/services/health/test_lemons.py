"""Lemons: who breaks attempts alone and again is taken out; storms, domains and programs blame nobody."""

from __future__ import annotations

import pytest

from services.health.lemons import Lemons
from services.health.messages import AttemptBroken, NodeForgotten, NodeKnown, NodeUnfit
from services.health.rules import Rules
from services.health.view import View
from statemachines import facts
from statemachines.node import NodeState
from statemachines.values import Cause, Evidence, JobId, JobNext, NodeId, Outcome, Reason
from tests.planning.build import Cell
from tests.services.health.bed import Bed

DAY_MS = 86_400_000


def strike(bed: Bed, *nodes: str, times: int = 1) -> None:
    for _ in range(times):
        bed.detector.observe(AttemptBroken("job", 1, nodes), bed.now_ms)
        bed.run(2_000)


def unfit(bed: Bed) -> list[str]:
    return [verdict.node for verdict in bed.of(NodeUnfit)]


def test_the_third_attempt_that_a_node_breaks_alone_takes_it_out() -> None:
    bed = Bed(6)
    strike(bed, "n2", times=2)
    assert unfit(bed) == []
    strike(bed, "n2")
    bed.run(10_000)
    assert unfit(bed) == ["n2"]
    (verdict,) = bed.of(NodeUnfit)
    assert verdict.message == (
        "it alone broke 3 attempts within 28 days: test it, then `tidemill uncordon n2`"
    )


def test_it_is_said_again_until_the_log_shows_it() -> None:
    bed = Bed(6, leader=False)
    strike(bed, "n2", times=3)
    bed.run(10_000)
    assert len(unfit(bed)) >= 4


def test_an_event_of_several_nodes_is_no_strike_for_any() -> None:
    bed = Bed(6)
    strike(bed, "n1", "n2", times=10)
    assert unfit(bed) == []


def test_many_nodes_with_strikes_are_a_storm() -> None:
    bed = Bed(8)
    for node in ("n1", "n2", "n3", "n4"):
        strike(bed, node, times=3 if node == "n4" else 1)
    assert unfit(bed) == []


def test_a_few_strikes_among_many_nodes_are_no_storm() -> None:
    bed = Bed(50)
    for node in ("n1", "n2", "n3", "n4"):
        strike(bed, node, times=3 if node == "n4" else 1)
    assert unfit(bed) == ["n4"]


def weeks_of(strikes: dict[int, list[str]]) -> list[str]:
    """Who is unfit in a cell of eight nodes, after each day with its strikes."""
    lemons, found = Lemons(Rules()), []
    for i in range(8):
        lemons.known(NodeKnown(f"n{i}", 1, NodeState.READY))
    for day, nodes in strikes.items():
        for node in nodes:
            lemons.struck(AttemptBroken("job", 1, (node,)), day * DAY_MS)
        found += [said.node for said in lemons.tick(day * DAY_MS) if isinstance(said, NodeUnfit)]
    return found


@pytest.mark.parametrize(("last", "found"), [(27, ["n2"]), (28, [])])
def test_strikes_of_four_weeks_add_up_to_a_lemon(last: int, found: list[str]) -> None:
    assert weeks_of({0: ["n2"], 9: ["n2"], last: ["n2"]}) == found


def test_nodes_that_were_struck_on_different_days_are_no_storm() -> None:
    assert weeks_of({0: ["n1"], 2: ["n2"], 4: ["n3"], 6: ["n4"] * 3}) == ["n4"]


def test_what_a_storm_broke_counts_against_nobody_when_it_is_over() -> None:
    storm = ["n1", "n2", "n3", "n4", "n1", "n1"]
    assert weeks_of({0: ["n4"], 2: storm, 4: ["n1", "n1"], 6: ["n4"]}) == []


def test_a_storm_leaves_what_was_known_before_it() -> None:
    assert weeks_of({0: ["n4", "n4"], 2: ["n1", "n2", "n3", "n5"], 4: ["n4"]}) == ["n4"]


def test_strikes_of_long_ago_are_forgotten() -> None:
    bed = Bed(6, Rules(lemon_window_ms=60_000))
    strike(bed, "n2", times=2)
    bed.run(60_000)
    strike(bed, "n2", times=2)
    assert unfit(bed) == []


def test_no_more_than_the_share_is_out_at_a_time() -> None:
    bed = Bed(6)
    strike(bed, "n1", times=3)
    strike(bed, "n2", times=3)
    bed.run(10_000)
    assert unfit(bed) == ["n1"]


def test_a_node_that_is_brought_back_begins_anew() -> None:
    bed = Bed(6)
    strike(bed, "n1", times=3)
    bed.nodes["n1"].in_service = True
    bed.tell("n1")
    strike(bed, "n1", times=2)
    assert unfit(bed) == ["n1"]
    strike(bed, "n1")
    assert unfit(bed) == ["n1", "n1"]


def test_a_cell_of_few_nodes_can_spare_none() -> None:
    bed = Bed(3)
    strike(bed, "n1", times=9)
    assert unfit(bed) == []


def test_it_can_be_turned_off() -> None:
    bed = Bed(6, Rules(lemon_strikes=0))
    strike(bed, "n1", times=9)
    assert unfit(bed) == []


def test_what_breaks_during_an_incident_is_no_strike() -> None:
    bed = Bed(8)
    bed.run(4_000)
    bed.mute([f"n{i}" for i in range(4)], 60_000)
    bed.run(15_000)
    assert bed.incident
    strike(bed, "n1", times=3)
    bed.run(120_000)
    assert not bed.incident
    assert unfit(bed) == []


def test_nodes_that_are_gone_have_no_past() -> None:
    bed = Bed(6)
    strike(bed, "n1", times=2)
    bed.detector.observe(NodeForgotten("n1"), bed.now_ms)
    strike(bed, "n1")
    bed.tell("n1")
    strike(bed, "n1")
    assert unfit(bed) == []


# --- what the fold says


def broken_gang(cell: Cell, cause: Cause, *evidence: Evidence) -> None:
    """A gang `job` ends, each member as told."""
    attempt = cell.cluster.attempt(JobId("job"))
    assert attempt is not None
    for run, how in zip(attempt.runs, evidence, strict=True):
        cell.record(facts.RunStarted(run))
        cell.record(facts.RunEnded(run, 1, 0, how, ""))
    ended = (Outcome.FAILED, cause, "", JobNext.QUEUED, 0)
    cell.record(facts.AttemptEnded(JobId("job"), attempt.number, *ended))


def gang() -> tuple[Cell, View]:
    """Two nodes of one device, a gang on both, and a view that has seen all of it."""
    cell = Cell()
    for name in ("a", "b"):
        cell.node(name, devices=1)
    cell.job("job", members=2)
    cell.plan()
    view = View(cell.cluster)
    list(view.everything())
    return cell, view


def breaks(view: View) -> list[AttemptBroken]:
    return [said for said in view.changes() if isinstance(said, AttemptBroken)]


def test_the_view_says_once_whose_hardware_broke_an_attempt() -> None:
    cell, view = gang()
    where = cell.where("job")
    broken_gang(cell, Cause.NODE_LOST, Evidence.EXIT_STATUS, Evidence.NODE_REBOOTED)
    cell.plan()  # The next attempt begins before anyone looks.
    assert breaks(view) == [AttemptBroken("job", 1, (where[1][0],))]
    cell.record(facts.RunStarted(cell.cluster.attempts[JobId("job")][-1].runs[0]))
    assert breaks(view) == []


@pytest.mark.parametrize("cause", [Cause.PROGRAM_FAILED, Cause.HUNG, Cause.START_FAILED])
def test_what_a_program_did_is_no_strike(cause: Cause) -> None:
    cell, view = gang()
    broken_gang(cell, cause, Evidence.EXIT_STATUS, Evidence.EXIT_STATUS)
    assert breaks(view) == []


def test_what_was_before_our_time_is_no_strike() -> None:
    cell, _ = gang()
    broken_gang(cell, Cause.NODE_LOST, Evidence.EXIT_STATUS, Evidence.NODE_REBOOTED)
    view = View(cell.cluster)
    assert not [said for said in view.everything() if isinstance(said, AttemptBroken)]
    cell.plan()
    assert breaks(view) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_what_fails_on_a_node_later_broke_no_attempt_before(restarted: bool) -> None:
    cell, view = gang()
    node = NodeId(cell.where("job")[0][0])
    broken_gang(cell, Cause.DEVICE_FAULT, Evidence.EXIT_STATUS, Evidence.EXIT_STATUS)
    if restarted:
        view = View(cell.cluster)
        list(view.everything())
    assert breaks(view) == []
    cell.record(facts.DeviceFaulted(node, 0, Reason("probe_failed")))
    cell.record(facts.JobWaiting(JobId("job"), Reason("no_devices")))
    assert breaks(view) == []


def test_jobs_that_have_left_are_forgotten() -> None:
    cell, view = gang()
    broken_gang(cell, Cause.NODE_LOST, Evidence.EXIT_STATUS, Evidence.NODE_REBOOTED)
    assert len(breaks(view)) == 1
    cell.record(facts.JobCancelled(JobId("job"), ""))
    cell.record(facts.JobRetired(JobId("job")))
    assert breaks(view) == []
    assert view._broken == {}
