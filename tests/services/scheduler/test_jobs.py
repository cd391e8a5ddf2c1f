"""A job from submission to its end, when nothing goes wrong."""

from __future__ import annotations

from statemachines import facts
from statemachines.entry import Recorded
from statemachines.values import (
    Cause,
    Evidence,
    Grant,
    JobId,
    JobNext,
    NodeId,
    Outcome,
    Placement,
    Reason,
    ResumePoint,
    RunId,
)
from tests.services.scheduler.cell import ALICE, Cell, spec

A = JobId("a")
RUN = RunId("a.1.0")


def test_a_submitted_job_is_admitted_placed_started_and_succeeds() -> None:
    cell = Cell()
    cell.nodes("n1")
    wanted = spec()
    key = cell.submit("a", wanted)
    admitted, placed = cell.step()
    assert isinstance(admitted, facts.JobAdmitted)
    assert admitted == facts.JobAdmitted(A, 1, 0, wanted, key, admitted.digest)
    assert isinstance(placed, facts.GangPlaced)
    assert placed == facts.GangPlaced(
        A,
        1,
        (Placement(RUN, NodeId("n1"), 0, "worker", (Grant(0, 1000),), 1000, 1024),),
        ResumePoint(),
        placed.master_port,
        Reason("tightest_fit", "the tightest fit of 1 member on 1 node"),
    )
    cell.began("a.1.0")
    assert cell.step() == [facts.RunStarted(RUN), facts.AttemptStarted(A, 1)]
    cell.ended("a.1.0")
    assert cell.step() == [
        facts.RunEnded(RUN, 0, 0, Evidence.EXIT_STATUS, ""),
        facts.AttemptEnded(A, 1, Outcome.SUCCEEDED, Cause.PROGRAM_EXITED, "", JobNext.SUCCEEDED, 0),
    ]
    assert cell.step(after_ms=cell.policy.retire_after_ms) == [facts.JobRetired(A)]


def test_facts_say_who_asked_and_which_input_caused_them() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.submit("a")
    cell.submit("b", by="user:bob")
    cell.step()
    who = [(type(each.fact).__name__, each.by, each.input) for each in cell.recorded]
    assert who == [
        ("NodeJoined", "node:n1", 1),
        ("JobAdmitted", ALICE, 1),
        ("JobAdmitted", "user:bob", 2),
        ("GangPlaced", "", 0),
        ("GangPlaced", "", 0),
    ]
    assert all(isinstance(each, Recorded) for each in cell.recorded)
