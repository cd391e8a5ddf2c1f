"""What hardware ends costs a job nothing; a job that only ever meets broken hardware is held all the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.retry import HARDWARE_ENDS_MOST
from statemachines import facts
from statemachines.values import Cause, JobId, JobNext, RetryPolicy
from tests.services.scheduler.begun import ends
from tests.services.scheduler.cell import Cell, spec
from tests.services.scheduler.test_verdicts import FAULTY, HEALTHY, device
from tidemill.v1 import requests_pb2

STUBBORN = RetryPolicy(max_attempts=-1)


def cell_of(nodes: int) -> Cell:
    """Job `a` runs on one of these nodes; it may go on beside what a lost one still runs."""
    cell = Cell()
    cell.nodes(*[f"n{i:02}" for i in range(nodes)], devices=1)
    cell.running("a", spec(overlap_safe=True, retry=STUBBORN))
    return cell


def lose_node(cell: Cell) -> facts.AttemptEnded:
    """The node under the job is lost; the job goes on elsewhere if it may."""
    cell.gone(cell.node_of(f"a.{cell.job('a').attempt}.0"))
    (end,) = ends(cell.step())
    go_on(cell)
    return end


def fail(cell: Cell, exit_code: int = 1) -> facts.AttemptEnded:
    cell.ended(f"a.{cell.job('a').attempt}.0", exit_code)
    (end,) = ends(cell.step())
    go_on(cell)
    return end


def go_on(cell: Cell) -> None:
    cell.run(after_ms=60_000)
    if cell.state("a") == "starting":
        cell.start("a")


def test_two_ends_by_hardware_and_one_by_the_program_hold_nobody() -> None:
    cell = cell_of(4)
    said = [lose_node(cell), lose_node(cell), fail(cell)]
    assert [(end.spared, end.next) for end in said] == [
        (True, JobNext.QUEUED),
        (True, JobNext.QUEUED),
        (False, JobNext.QUEUED),
    ]
    assert (cell.job("a").failed, cell.job("a").stalled) == (1, 1)


def test_hardware_uses_up_no_bound_on_attempts() -> None:
    cell = Cell()
    cell.nodes("n1", "n2", "n3", devices=1)
    cell.running("a", spec(overlap_safe=True, retry=RetryPolicy(max_attempts=2)))
    lose_node(cell)
    assert fail(cell).next is JobNext.QUEUED
    assert fail(cell).next is JobNext.FAILED


def test_a_program_that_only_says_so_is_not_spared() -> None:
    cell = cell_of(2)
    end = fail(cell, 17)
    assert (end.cause, end.spared) == (Cause.DEVICE_FAULT, False)
    assert cell.job("a").failed == 1


def test_it_is_spared_when_the_cell_finds_the_device_faulty() -> None:
    cell = Cell()
    cell.nodes("n1", "n2", "n3", devices=1)
    cell.running("a", spec(members=2, retry=STUBBORN))
    cell.verdict(device(FAULTY))
    cell.step()
    for rank in (0, 1):
        cell.ended(f"a.1.{rank}", 17)
    (end,) = ends(cell.step())
    assert (end.cause, end.spared) == (Cause.DEVICE_FAULT, True)


def test_a_device_that_is_well_again_before_the_gang_is_gone_changes_nothing() -> None:
    cell = Cell()
    cell.nodes("n1", "n2", "n3", devices=1)
    cell.running("a", spec(members=2, retry=STUBBORN))
    cell.verdict(device(FAULTY))
    cell.step()
    cell.verdict(device(HEALTHY))
    for rank in (0, 1):
        cell.ended(f"a.1.{rank}", signal=15)
    (end,) = ends(cell.step())
    assert (end.cause, end.spared) == (Cause.DEVICE_FAULT, True)


def test_a_job_that_breaks_every_node_is_held_and_says_so() -> None:
    cell = cell_of(HARDWARE_ENDS_MOST + 1)
    said = [lose_node(cell) for _ in range(HARDWARE_ENDS_MOST)]
    assert [end.next for end in said] == [JobNext.QUEUED] * (HARDWARE_ENDS_MOST - 1) + [
        JobNext.HELD
    ]
    assert said[-1].message == (
        "node n09 was lost; held after 10 ends in a row by hardware without a new durable checkpoint: see "
        "whether it breaks its nodes, then release it"
    )
    assert (cell.job("a").failed, cell.job("a").stalled) == (0, 0)


def test_who_lets_it_go_on_begins_the_row_anew() -> None:
    cell = cell_of(HARDWARE_ENDS_MOST + 2)
    for _ in range(HARDWARE_ENDS_MOST):
        lose_node(cell)
    cell.ask(requests_pb2.ReleaseJob(job="a"))
    go_on(cell)
    assert lose_node(cell).next is JobNext.QUEUED


@pytest.mark.parametrize("between", ["checkpoint", "program"])
def test_the_row_is_one_without_progress_and_without_other_ends(between: str) -> None:
    cell = cell_of(HARDWARE_ENDS_MOST + 1)
    for _ in range(HARDWARE_ENDS_MOST - 1):
        lose_node(cell)
    if between == "checkpoint":
        cell.saved("a", 10, attempt=cell.job("a").attempt)
        cell.step()
    else:
        fail(cell)
    assert lose_node(cell).next is JobNext.QUEUED


def _stopping_to_be_held(cell: Cell) -> None:
    """The third bad end in a row: the start of the attempt takes too long."""
    assert [fail(cell).next, fail(cell).next] == [JobNext.QUEUED, JobNext.QUEUED]
    lose_node(cell)
    attempt = cell.cluster.attempt(JobId("a"))
    assert attempt is not None
    assert (attempt.stop_cause, attempt.stop_next) == (Cause.START_FAILED, JobNext.HELD)


def test_a_trainer_that_saves_when_it_is_told_to_stop_has_made_progress_and_is_not_held() -> None:
    cell = cell_of(6)
    _stopping_to_be_held(cell)
    cell.saved("a", 10, attempt=cell.job("a").attempt)
    cell.step()
    end = fail(cell)
    assert (end.next, end.message) == (
        JobNext.QUEUED,
        "1 of 1 members did not start within 30 s: rank 0 on n01",
    )
    assert cell.job("a").stalled == 1


def test_one_that_saves_nothing_is_held() -> None:
    cell = cell_of(6)
    _stopping_to_be_held(cell)
    assert fail(cell).next is JobNext.HELD


def test_the_hold_of_a_person_stays_whatever_the_trainer_saves() -> None:
    cell = cell_of(6)
    _stopping_to_be_held(cell)
    cell.ask(requests_pb2.HoldJob(job="a"))
    cell.step()
    cell.saved("a", 10, attempt=cell.job("a").attempt)
    cell.step()
    end = fail(cell)
    assert (end.cause, end.next) == (Cause.HELD, JobNext.HELD)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["hardware", "program", "checkpoint"]), max_size=12))
def test_only_ends_that_are_not_spared_count(happened: list[str]) -> None:
    cell, failed, stalled, row, step = cell_of(14), 0, 0, 0, 0
    for each in happened:
        match each:
            case "hardware":
                row += 1
                end = lose_node(cell)
            case "program":
                row, failed, stalled = 0, failed + 1, stalled + 1
                end = fail(cell)
            case _:
                row, stalled, step = 0, 0, step + 10
                cell.saved("a", step, attempt=cell.job("a").attempt)
                cell.step()
                continue
        assert (cell.job("a").failed, cell.job("a").stalled) == (failed, stalled)
        held = row == HARDWARE_ENDS_MOST or (each == "program" and stalled == 3)
        assert end.next is (JobNext.HELD if held else JobNext.QUEUED)
        if held:
            return
