"""Checkpoints decide: what is accepted and from whom, what is kept, where attempts resume, early saves and their ladder."""

from __future__ import annotations

import pytest

from statemachines import facts
from statemachines.checkpoint import CheckpointState
from statemachines.values import Cause, JobNext, Outcome, Reach, ResumePoint, RetryPolicy, Tier
from tests.services.scheduler.cell import A, Cell, spec, uri
from tidemill.v1 import reports_pb2, requests_pb2

REQUEUE = requests_pb2.RequeueJob(job="a", save_first=True)


def training(**rest: object) -> Cell:
    """A cell of two nodes on which job `a` runs."""
    cell = Cell()
    cell.nodes("n1", "n2", devices=1)
    cell.running("a", spec(**rest))  # type: ignore[arg-type]
    return cell


def kinds(done: list[facts.Fact]) -> list[type]:
    return [type(fact) for fact in done]


def resumed_at(cell: Cell) -> ResumePoint:
    return cell.attempt("a").resume


# --- saves


def test_a_save_is_begun_saved_and_becomes_the_restart_point() -> None:
    cell = training()
    cell.report(reports_pb2.SaveBegan(job="a", attempt=1, step=10))
    assert cell.step() == [facts.CheckpointStarted(A, 1, 10)]
    cell.saved("a", 10)
    assert cell.step() == [
        facts.CheckpointSaved(
            A, 1, 10, uri("a", 1, 10), 100, Tier.REMOTE, Reach.CELL, 0, 0, "m10", False, False, ""
        )
    ]
    cell.ended("a.1.0", signal=9)
    cell.run(after_ms=60_000)
    assert resumed_at(cell) == ResumePoint(10, uri("a", 1, 10), "m10", 1)


def test_saves_of_an_earlier_attempt_are_refused() -> None:
    cell = training(overlap_safe=True)
    cell.saved("a", 10)
    cell.step()
    cell.gone(cell.node_of("a.1.0"))
    cell.run()
    cell.start("a")
    cell.report(reports_pb2.SaveBegan(job="a", attempt=1, step=20))
    cell.saved("a", 20, attempt=1)
    cell.report(reports_pb2.Finished(job="a", attempt=1, step=20))
    assert cell.step() == []
    assert cell.weather() == {"old_attempt": 3}
    assert cell.job("a").durable_step == 10


def test_a_save_not_above_the_last_is_refused() -> None:
    cell = training()
    cell.saved("a", 10)
    cell.saved("a", 10)
    cell.saved("a", 9)
    cell.report(reports_pb2.SaveBegan(job="a", attempt=1, step=5))
    assert kinds(cell.step()) == [facts.CheckpointSaved]
    assert cell.weather() == {"repeated_save": 3}


def test_a_begin_said_twice_is_one() -> None:
    cell = training()
    for _ in range(2):
        cell.report(reports_pb2.SaveBegan(job="a", attempt=1, step=10))
    assert kinds(cell.step()) == [facts.CheckpointStarted]


def test_a_save_that_failed_is_recorded_and_counts_for_nothing() -> None:
    cell = training()
    cell.report(reports_pb2.SaveBegan(job="a", attempt=1, step=10))
    failed = reports_pb2.SaveFailed(job="a", attempt=1, step=10, message="disk full")
    cell.report(failed)
    cell.report(failed)
    cell.report(reports_pb2.SaveFailed(job="a", attempt=1, step=99))
    assert cell.step() == [
        facts.CheckpointStarted(A, 1, 10),
        facts.CheckpointFailed(A, 1, 10, "disk full"),
    ]
    assert (cell.job("a").durable_step, cell.weather()) == (-1, {"unknown_save": 2})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ({"step": -1}, "a step or a size is negative"),
        ({"bytes": -1}, "a step or a size is negative"),
        ({"uri": ""}, "no uri, or one that is too long"),
        ({"uri": "u" * 4097}, "no uri, or one that is too long"),
        ({"tier": 0}, "tier: no Tier is given"),
        ({"reach": 0}, "reach: no Reach is given"),
        ({"reach": 77}, "reach: the log holds Reach number 77"),
    ],
    ids=["step", "bytes", "no_uri", "long_uri", "tier", "reach", "new_reach"],
)
def test_a_save_that_makes_no_sense_is_parked(spoil: dict[str, object], reason: str) -> None:
    cell = training()
    good: dict[str, object] = {"step": 10, "uri": "file:///x", "tier": 4, "reach": 3}
    saved = reports_pb2.Saved(job="a", attempt=1, **{**good, **spoil})  # type: ignore[arg-type]
    cell.report(saved)
    (parked,) = cell.step()
    assert isinstance(parked, facts.InputParked)
    assert parked.reason.startswith(reason)


def test_older_checkpoints_are_released_and_may_then_be_removed() -> None:
    cell = training(keep_checkpoints=2)
    for step in (10, 20, 30):
        cell.saved("a", step)
    assert cell.step()[-1] == facts.CheckpointReleased(A, 10)
    cell.report(reports_pb2.Removed(job="a", step=10))
    cell.report(reports_pb2.Removed(job="a", step=10))
    cell.report(reports_pb2.Removed(job="a", step=99))
    assert cell.step() == [facts.CheckpointRemoved(A, 10)]


def test_one_that_outlives_a_node_is_not_released_for_newer_ones_that_do_not() -> None:
    cell = training(keep_checkpoints=2)
    cell.saved("a", 10)
    for step in (20, 30, 40, 50):
        cell.saved("a", step, reach="NODE", node="n1")
    done = cell.step()
    released = [fact.step for fact in done if isinstance(fact, facts.CheckpointReleased)]
    assert released == [20, 30]
    cell.gone("n1")
    cell.run(after_ms=70_000)
    assert (cell.node_of("a.2.0"), resumed_at(cell).step) == ("n2", 10)


def test_a_checkpoint_that_vanished_is_no_restart_point_any_more() -> None:
    cell = training()
    cell.saved("a", 10)
    cell.saved("a", 20)
    cell.report(reports_pb2.Removed(job="a", step=20))
    cell.step()
    assert cell.job("a").durable_step == 10


# --- resuming


def test_a_receipt_that_matches_is_recorded_once() -> None:
    cell = training()
    receipt = reports_pb2.Resumed(job="a", attempt=1)
    cell.report(receipt)
    cell.report(receipt)
    assert cell.step() == [facts.AttemptResumed(A, 1, 0)]
    assert cell.weather() == {"repeated_receipt": 1}


def test_a_receipt_that_differs_holds_the_job() -> None:
    cell = training()
    cell.report(reports_pb2.Resumed(job="a", attempt=1, step=5, uri="file:///else", manifest="m"))
    mismatched, stopping = cell.step()
    assert mismatched == facts.ResumeMismatched(A, 1, 5, "file:///else", "m")
    assert isinstance(stopping, facts.AttemptStopping)
    assert (stopping.cause, stopping.next) == (Cause.RESUME_MISMATCH, JobNext.HELD)
    cell.ended("a.1.0", signal=15)
    cell.step()
    assert cell.state("a") == "held"


@pytest.mark.parametrize(
    ("manifest", "state"), [("m10", "running"), ("other", "stopping"), ("", "stopping")]
)
def test_the_manifest_is_part_of_the_receipt(manifest: str, state: str) -> None:
    cell = training()
    cell.saved("a", 10)
    cell.ended("a.1.0", signal=9)
    cell.run(after_ms=60_000)
    cell.start("a")
    where = uri("a", 1, 10)
    cell.report(reports_pb2.Resumed(job="a", attempt=2, step=10, uri=where, manifest=manifest))
    cell.step()
    assert cell.state("a") == state


def test_a_checkpoint_that_cannot_be_loaded_is_condemned_and_the_next_attempt_falls_back_one() -> (
    None
):
    cell = training()
    cell.saved("a", 10)
    cell.saved("a", 20)
    cell.ended("a.1.0", signal=9)
    cell.run(after_ms=60_000)
    assert resumed_at(cell).step == 20
    cell.start("a")
    failed = reports_pb2.LoadFailed(job="a", attempt=2, step=20, message="bad digest")
    cell.report(failed)
    cell.report(failed)
    condemned, stopping = cell.step()
    assert condemned == facts.CheckpointCondemned(A, 20, "bad digest")
    assert isinstance(stopping, facts.AttemptStopping)
    assert (stopping.cause, stopping.next) == (Cause.START_FAILED, JobNext.QUEUED)
    cell.ended("a.2.0", 1)
    cell.run(after_ms=60_000)
    assert (cell.job("a").attempt, resumed_at(cell).step) == (3, 10)


def test_the_last_checkpoint_is_never_given_up_for_a_failed_load() -> None:
    """An hour without storage must not cost all of the training."""
    cell = training()
    for step in (10, 20):
        cell.saved("a", step)
    cell.ended("a.1.0", signal=9)
    for attempt, step in ((2, 20), (3, 10)):
        cell.run(after_ms=60_000)
        cell.start("a")
        assert resumed_at(cell).step == step
        cell.report(reports_pb2.LoadFailed(job="a", attempt=attempt, step=step, message="timeout"))
        cell.step()
        cell.ended(f"a.{attempt}.0", 1)
    cell.run(after_ms=60_000)
    assert (cell.state("a"), cell.job("a").durable_step) == ("held", 10)
    held = cell.job("a").reason
    assert held is not None
    assert "see to its storage, then release the job" in held.message
    cell.ask(requests_pb2.ReleaseJob(job="a"))
    cell.step()
    assert (cell.job("a").attempt, resumed_at(cell).step) == (4, 10)


def test_a_checkpoint_on_the_disk_of_a_node_is_nothing_to_fall_back_on_for_one_that_outlives_it() -> (
    None
):
    cell = training()
    cell.saved("a", 10, reach="NODE", node="n1")
    cell.saved("a", 20)
    cell.ended("a.1.0", signal=9)
    cell.run(after_ms=60_000)
    cell.start("a")
    cell.report(reports_pb2.LoadFailed(job="a", attempt=2, step=20, message="timeout"))
    (stopping,) = cell.step()
    assert isinstance(stopping, facts.AttemptStopping)
    assert stopping.next is JobNext.HELD


def test_loads_that_fail_again_and_again_are_within_the_budget_of_the_job() -> None:
    cell = training(retry=RetryPolicy(max_attempts=2))
    for step in (10, 20, 30):
        cell.saved("a", step)
    cell.ended("a.1.0", signal=9)
    cell.run(after_ms=60_000)
    cell.start("a")
    cell.report(reports_pb2.LoadFailed(job="a", attempt=2, step=30, message="timeout"))
    (_, stopping) = cell.step()
    assert isinstance(stopping, facts.AttemptStopping)
    assert stopping.next is JobNext.FAILED
    assert stopping.message.endswith("it was the last of 2 attempts that may end badly")


def test_the_name_of_the_node_of_a_save_is_a_name() -> None:
    cell = training()
    cell.saved("a", 10, reach="NODE", node="n" * 257)
    (parked,) = cell.step()
    assert isinstance(parked, facts.InputParked)
    assert parked.reason == "the node's name is longer than 256"


def test_a_failed_load_of_something_that_was_not_decided_is_weather() -> None:
    cell = training()
    cell.report(reports_pb2.LoadFailed(job="a", attempt=1, step=10))
    assert cell.step() == []
    assert cell.weather() == {"unknown_load": 1}


def test_a_checkpoint_on_its_nodes_own_disk_is_used_only_there() -> None:
    cell = training()
    cell.saved("a", 10)
    cell.saved("a", 20, reach="NODE", node="n1")
    cell.step()
    assert cell.node_of("a.1.0") == "n1"
    cell.ended("a.1.0", signal=9)
    cell.run(after_ms=60_000)
    assert (cell.node_of("a.2.0"), resumed_at(cell).step) == ("n1", 20)
    cell.ended("a.2.0", 16)  # The same checkpoint on other nodes, please.
    cell.run(after_ms=60_000)
    assert (cell.node_of("a.3.0"), resumed_at(cell).step) == ("n2", 10)
    assert cell.job("a").durable_step == 10  # What it saves above that counts again.
    cell.start("a")
    cell.saved("a", 15, attempt=3)
    cell.step()
    assert cell.job("a").durable_step == 15


# --- early saves


def test_the_ladder_ask_acknowledged_durable_stop() -> None:
    cell = training()
    cell.ask(REQUEUE)
    deadline_ms = cell.now_ms + 20_000
    assert cell.step()[0] == facts.SaveAsked(A, 1, 1, deadline_ms, Cause.REQUEUED, JobNext.QUEUED)
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=50))
    assert cell.step() == [facts.SaveAcknowledged(A, 1, 1, 50)]
    cell.saved("a", 40)
    assert kinds(cell.step()) == [facts.CheckpointSaved]
    cell.saved("a", 50)
    stop_by_ms = cell.now_ms + 5_000
    assert cell.step()[1:] == [
        facts.AttemptStopping(A, 1, Cause.REQUEUED, "saved step 50", JobNext.QUEUED, stop_by_ms)
    ]
    cell.ended("a.1.0", 0)
    ended, placed = cell.step()[1:]
    assert ended == facts.AttemptEnded(
        A, 1, Outcome.STOPPED, Cause.REQUEUED, "saved step 50", JobNext.QUEUED, 0
    )
    assert isinstance(placed, facts.GangPlaced)
    assert (placed.resume.step, cell.job("a").failed) == (50, 0)


def test_the_deadline_of_an_ask_is_enforced() -> None:
    cell = training()
    cell.ask(REQUEUE)
    cell.step()
    assert cell.step(after_ms=19_999) == []
    (stop,) = cell.step(after_ms=1)
    assert isinstance(stop, facts.AttemptStopping)
    assert stop.message == "the asked save was not durable by its deadline"


def test_an_answer_to_another_ask_or_a_second_answer_is_weather() -> None:
    cell = training()
    cell.ask(REQUEUE)
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=2, at_step=50))
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=0))
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=50))
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=60))
    cell.step()
    assert cell.attempt("a").ask_step == 50
    assert cell.weather() == {"old_answer": 3}


def test_an_answer_for_a_step_that_is_durable_already_stops_at_once() -> None:
    cell = training()
    cell.ask(REQUEUE)
    cell.saved("a", 50)
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=50))
    assert kinds(cell.step())[-2:] == [facts.SaveAcknowledged, facts.AttemptStopping]


def test_an_answer_while_it_is_stopping_is_weather() -> None:
    cell = training()
    cell.ask(REQUEUE)
    cell.ask(requests_pb2.CancelJob(job="a"))
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=50))
    cell.step()
    assert cell.weather() == {"stopping_already": 1}


def test_a_trainer_that_stops_by_itself_after_the_ask_has_not_succeeded() -> None:
    cell = training()
    cell.ask(REQUEUE)
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=50))
    cell.ended("a.1.0", 0)
    cell.step()
    assert (cell.state("a"), cell.job("a").attempt) == ("starting", 2)


def test_a_program_that_ends_well_before_it_answers_has_succeeded() -> None:
    cell = training()
    cell.ask(REQUEUE)
    cell.ended("a.1.0", 0)
    cell.step()
    assert cell.state("a") == "succeeded"


def test_for_a_program_without_the_sdk_the_next_marked_save_answers_the_ask() -> None:
    cell = training()
    cell.ask(REQUEUE)
    cell.saved("a", 10)
    cell.step()
    assert cell.state("a") == "running"
    cell.saved("a", 20, by_marker=True)
    cell.step()
    assert cell.state("a") == "stopping"


def test_asking_twice_asks_once() -> None:
    cell = training()
    keys = [cell.ask(REQUEUE), cell.ask(REQUEUE)]
    assert kinds(cell.step()).count(facts.SaveAsked) == 1
    assert [cell.answer(key) for key in keys] == ["", ""]


def test_a_save_while_stopping_still_counts() -> None:
    cell = training()
    cell.ask(requests_pb2.RequeueJob(job="a"))
    cell.saved("a", 30)
    cell.step()
    cell.ended("a.1.0", 0)
    cell.step()
    assert resumed_at(cell).step == 30


def test_the_end_of_training_is_said_once() -> None:
    cell = training()
    cell.report(reports_pb2.Finished(job="a", attempt=1, step=-1))
    cell.report(reports_pb2.Finished(job="a", attempt=1, step=90))
    cell.report(reports_pb2.Finished(job="a", attempt=1, step=91))
    assert cell.step() == [facts.TrainingFinished(A, 1, 90)]
    assert cell.weather() == {"repeated_finish": 2}


def test_a_step_saved_again_by_a_later_attempt_replaces_the_condemned_one() -> None:
    cell = training()
    cell.saved("a", 5)
    cell.saved("a", 10)
    cell.ended("a.1.0", signal=9)
    cell.run(after_ms=60_000)
    cell.start("a")
    cell.report(reports_pb2.LoadFailed(job="a", attempt=2, step=10, message="bad"))
    cell.step()
    cell.ended("a.2.0", 1)
    cell.run(after_ms=60_000)
    cell.start("a")
    cell.saved("a", 10, attempt=3)
    cell.step()
    (_, kept) = cell.cluster.checkpoints[A]
    assert (kept.state, kept.attempt) == (CheckpointState.DURABLE, 3)
