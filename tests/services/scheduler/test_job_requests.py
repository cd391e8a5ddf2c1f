"""Cancel, hold, release, requeue: in each state of a job, granted or refused, with the facts that follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import Message

from statemachines import facts
from statemachines.values import Cause, JobNext, Outcome, Reason
from tests.services.scheduler.cell import A, Cell, apply, spec
from tidemill.v1 import requests_pb2

CANCEL = requests_pb2.CancelJob(job="a", message="enough")
HOLD = requests_pb2.HoldJob(job="a")
RELEASE = requests_pb2.ReleaseJob(job="a")
REQUEUE = requests_pb2.RequeueJob(job="a")
SAVE_FIRST = requests_pb2.RequeueJob(job="a", save_first=True)


def name_of(asked: Message) -> str:
    return "SaveFirst" if asked == SAVE_FIRST else asked.DESCRIPTOR.name


def queued() -> Cell:
    cell = Cell()
    cell.submit("a")
    cell.step()
    return cell


def held() -> Cell:
    cell = Cell()
    cell.submit("a", spec(held=True))
    cell.step()
    return cell


def starting() -> Cell:
    cell = Cell()
    cell.nodes("n1")
    cell.placed("a")
    return cell


def running() -> Cell:
    cell = starting()
    cell.start("a")
    return cell


def stopping(asked: Message) -> Callable[[], Cell]:
    def made() -> Cell:
        cell = running()
        cell.ask(asked)
        cell.step()
        assert cell.state("a") == "stopping"
        return cell

    made.__name__ = f"stopping_for_{name_of(asked)}"
    return made


def failing() -> Cell:
    """Stopping because a member failed: it will be failed."""
    cell = Cell()
    cell.nodes("n1")
    cell.running("a", spec(members=2))
    cell.ended("a.1.0", 1)
    cell.step()
    assert cell.attempt("a").stop_next is JobNext.FAILED
    return cell


def ended(exit_code: int) -> Callable[[], Cell]:
    def made() -> Cell:
        cell = running()
        cell.ended("a.1.0", exit_code)
        cell.step()
        return cell

    made.__name__ = f"exited_{exit_code}"
    return made


def cancelled() -> Cell:
    cell = queued()
    cell.ask(CANCEL)
    cell.step()
    return cell


succeeded, failed = ended(0), ended(1)


Case = tuple[Callable[[], Cell], Message, str, str]
CASES: list[Case] = [
    (queued, CANCEL, "", "cancelled"),
    (held, CANCEL, "", "cancelled"),
    (starting, CANCEL, "", "stopping"),
    (running, CANCEL, "", "stopping"),
    (stopping(REQUEUE), CANCEL, "", "stopping"),
    (stopping(CANCEL), CANCEL, "", "stopping"),
    (failing, CANCEL, "", "stopping"),
    (cancelled, CANCEL, "", "cancelled"),
    (succeeded, CANCEL, "bad_state", "succeeded"),
    (failed, CANCEL, "bad_state", "failed"),
    (queued, HOLD, "", "held"),
    (held, HOLD, "", "held"),
    (starting, HOLD, "", "stopping"),
    (running, HOLD, "", "stopping"),
    (stopping(REQUEUE), HOLD, "", "stopping"),
    (stopping(HOLD), HOLD, "", "stopping"),
    (stopping(CANCEL), HOLD, "bad_state", "stopping"),
    (failing, HOLD, "bad_state", "stopping"),
    (succeeded, HOLD, "bad_state", "succeeded"),
    (failed, HOLD, "bad_state", "failed"),
    (cancelled, HOLD, "bad_state", "cancelled"),
    (queued, RELEASE, "bad_state", "queued"),
    (held, RELEASE, "", "queued"),
    (starting, RELEASE, "bad_state", "starting"),
    (running, RELEASE, "bad_state", "running"),
    (stopping(HOLD), RELEASE, "bad_state", "stopping"),
    (succeeded, RELEASE, "bad_state", "succeeded"),
    (queued, REQUEUE, "bad_state", "queued"),
    (held, REQUEUE, "", "queued"),
    (starting, REQUEUE, "", "stopping"),
    (running, REQUEUE, "", "stopping"),
    (starting, SAVE_FIRST, "", "stopping"),
    (running, SAVE_FIRST, "", "running"),
    (stopping(HOLD), REQUEUE, "", "stopping"),
    (stopping(REQUEUE), REQUEUE, "", "stopping"),
    (stopping(CANCEL), REQUEUE, "bad_state", "stopping"),
    (failing, REQUEUE, "bad_state", "stopping"),
    (succeeded, REQUEUE, "", "starting"),
    (failed, REQUEUE, "", "starting"),
    (cancelled, REQUEUE, "", "queued"),
]


@pytest.mark.parametrize(
    ("made", "asked", "code", "state"),
    CASES,
    ids=[f"{made.__name__}-{name_of(asked)}" for made, asked, _, _ in CASES],
)
def test_a_request_in_each_state(
    made: Callable[[], Cell], asked: Message, code: str, state: str
) -> None:
    cell = made()
    key = cell.ask(asked)
    cell.step()
    assert (cell.answer(key), cell.state("a")) == (code, state)


def test_a_waiting_job_is_cancelled_at_once() -> None:
    cell = queued()
    key = cell.ask(CANCEL)
    cancelled_, accepted = cell.step()
    assert cancelled_ == facts.JobCancelled(A, "cancelled by user:alice: enough")
    assert isinstance(accepted, facts.RequestAccepted)
    assert accepted == facts.RequestAccepted(key, accepted.digest, "CancelJob", "a")


def test_a_running_job_is_cancelled_by_stopping_its_runs() -> None:
    cell = running()
    cell.ask(CANCEL)
    deadline_ms = cell.now_ms + 5_000
    message = "cancelled by user:alice: enough"
    assert cell.step()[0] == facts.AttemptStopping(
        A, 1, Cause.CANCELLED, message, JobNext.CANCELLED, deadline_ms
    )
    cell.ended("a.1.0", signal=15)
    assert cell.step()[1] == facts.AttemptEnded(
        A, 1, Outcome.STOPPED, Cause.CANCELLED, message, JobNext.CANCELLED, 0
    )
    assert (cell.state("a"), cell.job("a").failed) == ("cancelled", 0)


def test_a_cancel_overrides_a_requeue_and_keeps_the_earlier_deadline() -> None:
    cell = stopping(REQUEUE)()
    deadline_ms = cell.attempt("a").stop_deadline_ms
    cell.now_ms += 1_000
    cell.ask(CANCEL)
    stop = cell.step()[0]
    assert isinstance(stop, facts.AttemptStopping)
    assert (stop.next, stop.deadline_ms) == (JobNext.CANCELLED, deadline_ms)


def test_a_job_exiting_0_after_a_requested_stop_has_not_succeeded() -> None:
    cell = stopping(REQUEUE)()
    cell.ended("a.1.0", 0)
    cell.step()
    assert (cell.state("a"), cell.job("a").attempt) == ("starting", 2)


def test_a_job_that_said_it_finished_and_exits_0_has_succeeded_whatever_was_asked() -> None:
    from tidemill.v1 import reports_pb2

    cell = running()
    cell.report(reports_pb2.Finished(job="a", attempt=1, step=10))
    cell.ask(REQUEUE)
    cell.step()
    cell.ended("a.1.0", 0)
    assert cell.step()[-1] == facts.AttemptEnded(
        A, 1, Outcome.SUCCEEDED, Cause.PROGRAM_EXITED, "", JobNext.SUCCEEDED, 0
    )


def test_a_person_who_lets_a_job_run_again_clears_what_counted_against_it() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.running("a")
    for attempt in range(1, 4):
        cell.ended(f"a.{attempt}.0", signal=9)
        cell.run(after_ms=60_000)
        if cell.state("a") == "starting":
            cell.start("a")
    assert (cell.state("a"), cell.job("a").stalled) == ("held", 3)
    cell.ask(RELEASE)
    cell.step()
    assert (cell.state("a"), cell.job("a").failed, cell.job("a").stalled) == ("starting", 0, 0)


def test_a_hold_says_who_and_why() -> None:
    cell = queued()
    cell.ask(requests_pb2.HoldJob(job="a", message="budget"), by="user:bob")
    assert cell.step()[0] == facts.JobHeld(A, Reason("held_by_user", "held by user:bob: budget"))


def test_a_job_that_is_gone_or_never_was_is_unknown() -> None:
    cell = succeeded()
    cell.step(after_ms=cell.policy.retire_after_ms)
    keys = [cell.ask(CANCEL), cell.ask(requests_pb2.CancelJob(job="b"))]
    cell.step()
    assert [cell.answer(key) for key in keys] == ["unknown_job", "unknown_job"]


# --- arrays


def test_a_request_that_names_an_array_goes_to_every_element_that_may_have_it() -> None:
    cell = Cell()
    cell.submit("a", count=3)
    cell.ask(requests_pb2.CancelJob(job="a_1"))
    cell.step()
    cell.ask(requests_pb2.HoldJob(job="a"))
    held_, also, accepted = cell.step()
    assert [type(held_), type(also)] == [facts.JobHeld, facts.JobHeld]
    assert isinstance(accepted, facts.RequestAccepted)
    assert [cell.state(f"a_{i}") for i in range(3)] == ["held", "cancelled", "held"]


def test_a_request_that_is_legal_for_no_element_is_refused() -> None:
    cell = Cell()
    cell.submit("a", count=2)
    cell.step()
    key = cell.ask(RELEASE)
    cell.step()
    assert cell.answer(key) == "bad_state"


def test_a_new_leader_knows_the_arrays() -> None:
    cell = Cell()
    cell.submit("a", count=3)
    cell.step()
    cell.take_over()
    cell.ask(CANCEL)
    cell.step()
    assert [cell.state(f"a_{i}") for i in range(3)] == ["cancelled"] * 3


def test_an_array_that_has_left_is_unknown() -> None:
    cell = Cell()
    cell.submit("a", count=2)
    cell.ask(CANCEL)
    cell.step()
    cell.step(after_ms=cell.policy.retire_after_ms)
    keys = [cell.ask(CANCEL), cell.ask(CANCEL)]
    cell.step()
    assert [cell.answer(key) for key in keys] == ["unknown_job", "unknown_job"]


def test_requeueing_an_ended_job_counts_against_its_queue_again() -> None:
    cell = Cell()
    cell.ask(apply("one", job_limit=1))
    cell.submit("a", spec(queue="one"))
    cell.ask(CANCEL)
    cell.submit("b", spec(queue="one"))
    key = cell.ask(REQUEUE)
    cell.step()
    assert (cell.answer(key), cell.state("a")) == ("job_limit", "cancelled")
