"""Limits of time: to start, to run, to stop; under a new leader too."""

from __future__ import annotations

import msgspec

from services.scheduler.duetimes import OVERDUE_MS
from statemachines import facts
from statemachines.values import Cause, JobNext, Outcome
from tests.services.scheduler.begun import ends, gang, one
from tests.services.scheduler.cell import POLICY, A, Cell, spec
from tidemill.v1 import requests_pb2


def test_members_that_do_not_start_in_time_fail_the_start() -> None:
    cell = Cell()
    cell.nodes("n1", "n2", devices=1)
    cell.placed("a", spec(members=2))
    cell.began("a.1.0")
    cell.step()
    assert cell.step(after_ms=29_999) == []
    deadline_ms = cell.now_ms + 1 + 5_000
    assert cell.step(after_ms=1) == [
        facts.AttemptStopping(
            A,
            1,
            Cause.START_FAILED,
            "1 of 2 members did not start within 30 s: rank 1 on n2",
            JobNext.QUEUED,
            deadline_ms,
        )
    ]


def test_an_attempt_that_runs_over_its_time_limit_fails() -> None:
    cell = one(max_run_ms=60_000)
    assert cell.step(after_ms=59_999) == []
    deadline_ms = cell.now_ms + 1 + 5_000
    message = "its time limit of 60 s has passed"
    assert cell.step(after_ms=1) == [
        facts.AttemptStopping(A, 1, Cause.TIME_LIMIT, message, JobNext.FAILED, deadline_ms)
    ]
    cell.ended("a.1.0", signal=15)
    assert ends(cell.step()) == [
        facts.AttemptEnded(A, 1, Outcome.FAILED, Cause.TIME_LIMIT, message, JobNext.FAILED, 0)
    ]


def test_due_times_survive_a_change_of_leader() -> None:
    cell = one(max_run_ms=60_000)
    cell.now_ms += 30_000
    cell.take_over()
    assert cell.core.next_due_ms(cell.now_ms) == cell.now_ms  # The first plan of a term.
    cell.step()
    assert cell.core.next_due_ms(cell.now_ms) == cell.now_ms + 30_000
    assert [type(fact) for fact in cell.step(after_ms=30_000)] == [facts.AttemptStopping]


def test_a_gang_that_began_while_nobody_led_has_its_time_to_say_so() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.placed("a")
    cell.now_ms += 10 * POLICY.start_timeout_ms
    cell.take_over()
    assert cell.step() == []
    assert cell.step(after_ms=POLICY.start_timeout_ms - 1) == []
    assert [type(fact) for fact in cell.step(after_ms=1)] == [facts.AttemptStopping]


def waits(done: list[facts.Fact]) -> list[facts.JobWaiting]:
    return [fact for fact in done if isinstance(fact, facts.JobWaiting)]


def test_runs_that_outlive_their_stop_are_told_of_once_by_the_job() -> None:
    """A process that cannot be killed holds its devices; somebody must know where to look."""
    cell = gang(members=2)
    cell.ask(requests_pb2.CancelJob(job="a"))
    cell.step()
    cell.ended("a.1.0", signal=15)
    assert cell.step(after_ms=POLICY.grace_ms + OVERDUE_MS - 1)[1:] == []
    (waiting,) = cell.step(after_ms=1)
    assert isinstance(waiting, facts.JobWaiting)
    assert (waiting.reason.code, waiting.reason.blockers) == ("stop_overdue", ("n2",))
    assert cell.run(after_ms=3_600_000) == []
    cell.ended("a.1.1", signal=9)
    assert len(ends(cell.step())) == 1
    assert cell.state("a") == "cancelled"


def test_a_new_leader_gives_agents_the_time_to_say_that_runs_have_ended() -> None:
    cell = gang(members=2)
    cell.ask(requests_pb2.CancelJob(job="a"))
    cell.step()
    cell.now_ms += 3_600_000
    cell.take_over()
    assert waits(cell.step(after_ms=OVERDUE_MS - 1)) == []
    assert len(waits(cell.step(after_ms=1))) == 1


def test_runs_that_are_lost_are_waited_for_by_their_fence_alone() -> None:
    cell = gang(members=2, fence_after_ms=-1)
    for node in ("n1", "n2"):
        cell.gone(node)
    cell.step()
    assert [each.reason.code for each in waits(cell.run(after_ms=3_600_000))] == []
    reason = cell.job("a").reason
    assert reason is not None
    assert reason.code == "waiting_for_old_runs"


def test_a_late_step_does_all_that_is_due() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.running("a", spec(max_run_ms=1_000))
    cell.running("b", spec(max_run_ms=2_000))
    stops = cell.step(after_ms=600_000)
    assert [
        (fact.job, fact.cause) for fact in stops if isinstance(fact, facts.AttemptStopping)
    ] == [
        ("a", Cause.TIME_LIMIT),
        ("b", Cause.TIME_LIMIT),
    ]


def test_a_clock_that_goes_back_does_not_take_time_back() -> None:
    cell = one(max_run_ms=60_000)
    cell.now_ms -= 3_600_000
    cell.submit("b", spec(devices=0))
    cell.step()
    assert cell.cluster.at_ms == 1_000_000


def test_ended_jobs_leave_after_a_while_and_their_ids_are_free_again() -> None:
    cell = one()
    cell.ended("a.1.0")
    cell.step()
    assert cell.step(after_ms=POLICY.retire_after_ms - 1) == []
    assert cell.step(after_ms=1) == [facts.JobRetired(A)]
    assert cell.cluster.runs == {}
    cell.submit("a")
    cell.step()
    assert cell.job("a").number == 2


def test_retirement_can_be_turned_off() -> None:
    cell = Cell(policy=msgspec.structs.replace(POLICY, retire_after_ms=-1))
    cell.nodes("n1")
    cell.running("a")
    cell.ended("a.1.0")
    cell.step()
    assert cell.core.next_due_ms(cell.now_ms) is None
