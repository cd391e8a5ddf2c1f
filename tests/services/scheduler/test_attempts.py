"""How attempts go on and end: members, failures, retries, brakes; late and repeated reports."""

from __future__ import annotations

import msgspec
import pytest

from statemachines import facts
from statemachines.values import Cause, Evidence, JobNext, Outcome, RetryPolicy, RunId
from tests.services.scheduler.begun import ends, gang, one
from tests.services.scheduler.cell import POLICY, A, Cell, spec
from tidemill.v1 import common_pb2, reports_pb2, requests_pb2, verdicts_pb2

# --- members


def test_an_attempt_runs_once_every_member_does() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.placed("a", spec(members=3))
    for rank in range(2):
        cell.began(f"a.1.{rank}")
        assert [type(fact) for fact in cell.step()] == [facts.RunStarted]
    cell.began("a.1.2")
    assert cell.step() == [facts.RunStarted(RunId("a.1.2")), facts.AttemptStarted(A, 1)]


def test_a_gang_succeeds_when_the_last_member_has_exited_with_0() -> None:
    cell = gang()
    for rank in (2, 0):
        cell.ended(f"a.1.{rank}")
        assert [type(fact) for fact in cell.step()] == [facts.RunEnded]
    cell.ended("a.1.1")
    assert ends(cell.step()) == [
        facts.AttemptEnded(A, 1, Outcome.SUCCEEDED, Cause.PROGRAM_EXITED, "", JobNext.SUCCEEDED, 0)
    ]


def test_a_member_that_exits_before_the_others_begin_does_not_end_the_gang() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.placed("a", spec(members=2))
    cell.began("a.1.0")
    cell.ended("a.1.0")
    cell.step()
    assert cell.state("a") == "starting"
    cell.began("a.1.1")
    assert cell.step()[-1] == facts.AttemptStarted(A, 1)
    cell.ended("a.1.1")
    cell.step()
    assert cell.state("a") == "succeeded"


def test_a_member_that_fails_stops_the_others_and_then_the_attempt_ends() -> None:
    cell = gang()
    cell.ended("a.1.1", 3, message="assertion failed")
    deadline_ms = cell.now_ms + 5_000
    message = "rank 1 on n2 failed (exit code 3): assertion failed"
    assert cell.step() == [
        facts.RunEnded(RunId("a.1.1"), 3, 0, Evidence.EXIT_STATUS, "assertion failed"),
        facts.AttemptStopping(A, 1, Cause.PROGRAM_FAILED, message, JobNext.FAILED, deadline_ms),
    ]
    cell.ended("a.1.0", signal=15)
    assert [type(fact) for fact in cell.step()] == [facts.RunEnded]
    cell.ended("a.1.2", signal=9)
    assert cell.step()[1:] == [
        facts.AttemptEnded(A, 1, Outcome.FAILED, Cause.PROGRAM_FAILED, message, JobNext.FAILED, 0)
    ]


def test_ends_of_all_members_in_one_step_make_one_stop_and_one_end() -> None:
    cell = gang()
    for rank in range(3):
        cell.ended(f"a.1.{rank}", 1)
    assert [type(fact) for fact in cell.step()] == [
        facts.RunEnded, facts.AttemptStopping, facts.RunEnded, facts.RunEnded, facts.AttemptEnded,
    ]  # fmt: skip


# --- reports that do not fit are weather


def test_repeated_late_and_foreign_reports_of_runs_change_nothing() -> None:
    cell = one()
    cell.began("a.1.0")
    cell.report(reports_pb2.RunBegan(run="a.1.0"), node="n2")
    cell.report(reports_pb2.RunBegan(run="a.7.0"), node="n1")
    cell.report(
        reports_pb2.RunFinished(run="x.1.0", evidence=common_pb2.EVIDENCE_EXIT_STATUS), node="n1"
    )
    assert cell.step() == []
    assert cell.weather() == {"repeated_begin": 1, "unknown_run": 3}
    cell.ended("a.1.0")
    cell.ended("a.1.0", 1)
    cell.began("a.1.0")
    cell.step()
    assert (cell.state("a"), cell.weather()) == ("succeeded", {"repeated_end": 1, "late_begin": 1})


def test_a_late_end_of_an_earlier_attempt_changes_nothing_of_the_present_one() -> None:
    cell = one(overlap_safe=True)
    cell.attach("n2")
    cell.step()
    cell.gone("n1")
    cell.run()
    assert (cell.job("a").attempt, cell.node_of("a.2.0")) == (2, "n2")
    cell.start("a")
    cell.report(
        reports_pb2.RunFinished(
            run="a.1.0", exit_code=1, evidence=common_pb2.EVIDENCE_KILLED_AND_REAPED
        ),
        node="n1",
    )
    assert [type(fact) for fact in cell.step()] == [facts.RunEnded]
    assert cell.state("a") == "running"


def test_reports_that_came_in_the_wrong_order_still_end_the_job() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.placed("a")
    cell.ended("a.1.0")
    cell.began("a.1.0")
    done = cell.step()
    assert [type(fact) for fact in done] == [facts.RunEnded, facts.AttemptEnded]
    assert (cell.state("a"), cell.weather()) == ("succeeded", {"late_begin": 1})


def test_an_agent_cannot_vouch_as_an_operator() -> None:
    cell = one()
    cell.ended("a.1.0", evidence=Evidence.OPERATOR_SAID)
    (parked,) = cell.step()
    assert isinstance(parked, facts.InputParked)
    assert parked.reason == "an agent cannot vouch by operator_said"


def test_an_end_without_evidence_is_parked() -> None:
    cell = one()
    cell.report(reports_pb2.RunFinished(run="a.1.0"), node="n1")
    (parked,) = cell.step()
    assert isinstance(parked, facts.InputParked)
    assert parked.reason == "evidence: no Evidence is given"


# --- whose fault


@pytest.mark.parametrize(
    ("exit_code", "signal", "evidence", "cause", "then"),
    [
        (1, 0, Evidence.EXIT_STATUS, Cause.PROGRAM_FAILED, "failed"),
        (127, 0, Evidence.EXIT_STATUS, Cause.PROGRAM_FAILED, "failed"),
        (0, 11, Evidence.EXIT_STATUS, Cause.PROGRAM_FAILED, "failed"),
        (0, 6, Evidence.EXIT_STATUS, Cause.PROGRAM_FAILED, "failed"),
        (0, 9, Evidence.EXIT_STATUS, Cause.PROGRAM_FAILED, "queued"),
        (0, 15, Evidence.EXIT_STATUS, Cause.PROGRAM_FAILED, "queued"),
        (137, 0, Evidence.EXIT_STATUS, Cause.PROGRAM_FAILED, "queued"),
        (143, 0, Evidence.EXIT_STATUS, Cause.PROGRAM_FAILED, "queued"),
        (16, 0, Evidence.EXIT_STATUS, Cause.PROGRAM_FAILED, "queued"),
        (17, 0, Evidence.EXIT_STATUS, Cause.DEVICE_FAULT, "queued"),
        (0, 0, Evidence.KILLED_AND_REAPED, Cause.NODE_LOST, "queued"),
        (0, 0, Evidence.SELF_FENCED, Cause.NODE_LOST, "queued"),
        (0, 0, Evidence.FENCE_CONFIRMED, Cause.NODE_LOST, "queued"),
        (0, 0, Evidence.NODE_REBOOTED, Cause.NODE_LOST, "queued"),
        (0, 0, Evidence.NEVER_STARTED, Cause.START_FAILED, "queued"),
    ],
)
def test_what_an_end_means_for_a_plain_program(
    exit_code: int, signal: int, evidence: Evidence, cause: Cause, then: str
) -> None:
    cell = one()
    cell.ended("a.1.0", exit_code, signal=signal, evidence=evidence)
    (end,) = ends(cell.step())
    assert (end.cause, end.next) == (cause, then)


def test_a_plain_program_that_fails_by_itself_is_not_tried_again() -> None:
    cell = one()
    cell.ended("a.1.0", 1)
    cell.step()
    assert cell.state("a") == "failed"


def test_one_with_a_checkpoint_is() -> None:
    cell = one()
    cell.saved("a", 10)
    cell.ended("a.1.0", 1)
    (end,) = ends(cell.step())
    assert (end.next, end.not_before_ms) == (JobNext.QUEUED, cell.now_ms + 1_000)


def test_one_that_asked_for_attempts_is_until_they_are_used_up() -> None:
    cell = one(retry=RetryPolicy(max_attempts=2, backoff_ms=500))
    cell.ended("a.1.0", 1)
    (first,) = ends(cell.step())
    assert (first.next, first.not_before_ms) == (JobNext.QUEUED, cell.now_ms + 500)
    cell.run(after_ms=500)
    cell.start("a")
    cell.ended("a.2.0", 1)
    (second,) = ends(cell.step())
    assert second == facts.AttemptEnded(
        A,
        2,
        Outcome.FAILED,
        Cause.PROGRAM_FAILED,
        "rank 0 on n1 failed (exit code 1); it was the last of 2 attempts that may end badly",
        JobNext.FAILED,
        0,
    )


def test_only_infrastructure_means_that_the_programs_own_failures_are_final() -> None:
    cell = one(retry=RetryPolicy(only_infrastructure=True, max_attempts=5))
    cell.saved("a", 10)
    cell.ended("a.1.0", 1)
    cell.step()
    assert cell.state("a") == "failed"


def test_a_program_is_not_blamed_while_a_node_of_its_gang_is_in_doubt() -> None:
    cell = gang()
    cell.verdict(verdicts_pb2.NodeSuspect(node="n3", incarnation=1, silent_ms=6000))
    cell.ended("a.1.0", 1)
    cell.step()
    assert cell.attempt("a").stop_next is JobNext.QUEUED


def test_the_crash_loop_brake_holds_a_job_that_makes_no_progress() -> None:
    cell = one(retry=RetryPolicy(max_attempts=-1))
    for attempt in (1, 2):
        cell.ended(f"a.{attempt}.0", 1)
        (end,) = ends(cell.step())
        assert end.not_before_ms == cell.now_ms + 1_000 * 2 ** (attempt - 1)
        cell.run(after_ms=60_000)
        cell.start("a")
    cell.ended("a.3.0", 1)
    (end,) = ends(cell.step())
    assert (end.next, end.message) == (
        JobNext.HELD,
        (
            "rank 0 on n1 failed (exit code 1); held after 3 bad ends in a row without a new durable "
            "checkpoint: release it to try again"
        ),
    )
    assert cell.job("a").reason is not None


def test_progress_takes_the_brake_off() -> None:
    cell = one(retry=RetryPolicy(max_attempts=-1))
    for attempt in range(1, 7):
        cell.saved("a", attempt * 10, attempt=attempt)
        cell.ended(f"a.{attempt}.0", 1)
        cell.run(after_ms=60_000)
        cell.start("a")
    assert (cell.state("a"), cell.job("a").failed, cell.job("a").stalled) == ("running", 6, 1)


def test_the_backoff_doubles_to_a_bound() -> None:
    policy = msgspec.structs.replace(POLICY, max_attempts_without_progress=20)
    cell = Cell(policy=policy)
    cell.nodes("n1")
    cell.running("a", spec(retry=RetryPolicy(max_attempts=-1)))
    waits = []
    for attempt in range(1, 9):
        cell.ended(f"a.{attempt}.0", 1)
        waits.append(ends(cell.step())[0].not_before_ms - cell.now_ms)
        cell.run(after_ms=60_000)
        cell.start("a")
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000, 32_000]


def test_a_job_in_backoff_waits_with_that_reason_and_is_placed_when_it_is_over() -> None:
    cell = one()
    cell.saved("a", 10)
    cell.ended("a.1.0", 1)
    cell.step()
    reason = cell.job("a").reason
    assert reason is not None and reason.code == "backoff"
    assert cell.core.next_due_ms(cell.now_ms) == cell.now_ms + 1_000
    assert cell.step(after_ms=999) == []
    (placed,) = cell.step(after_ms=1)
    assert isinstance(placed, facts.GangPlaced)
    assert (placed.attempt, placed.resume.step) == (2, 10)


def test_the_loss_of_nodes_is_never_held_against_a_job() -> None:
    cell = Cell()
    cell.nodes(*[f"n{i}" for i in range(6)], devices=1)
    cell.running("a", spec(overlap_safe=True))
    for _ in range(5):
        cell.gone(cell.node_of(cell.attempt("a").runs[0]))
        cell.run()
        cell.start("a")
        cell.now_ms += 61_000
    assert (cell.state("a"), cell.job("a").attempt) == ("running", 6)


def test_a_node_that_started_anew_explains_why_the_others_failed_before_it_was_heard() -> None:
    cell = gang(members=2)
    cell.ended("a.1.0", 1)  # It lost its peer, whose node went down; alone it would fail for good.
    stopping = [fact for fact in cell.step() if isinstance(fact, facts.AttemptStopping)]
    assert [(fact.cause, fact.next) for fact in stopping] == [
        (Cause.PROGRAM_FAILED, JobNext.FAILED)
    ]
    cell.attach("n2", devices=1, boot="boot-2", incarnation=2)
    assert [(fact.cause, fact.next, fact.message) for fact in ends(cell.step())] == [
        (
            Cause.NODE_LOST,
            JobNext.QUEUED,
            "rank 1 on n2 its node started anew: node n2 started anew",
        )
    ]


def test_a_job_that_was_cancelled_stays_so_when_its_node_starts_anew() -> None:
    cell = one()
    cell.ask(requests_pb2.CancelJob(job="a"))
    cell.step()
    cell.attach("n1", boot="boot-2", incarnation=2)
    assert [(fact.cause, fact.next) for fact in ends(cell.step())] == [
        (Cause.CANCELLED, JobNext.CANCELLED)
    ]
