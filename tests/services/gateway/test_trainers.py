"""What a trainer may say, and that it can speak for its own attempt alone."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from services.gateway.auth import Caller
from services.gateway.effects import Result
from services.gateway.refusal import Refusal, Status
from services.runtime.ports import PortError
from services.runtime.tokens import job_token
from tests.services.gateway.world import KEY, World, trainer
from tidemill.kafka.records import progress_proof
from tidemill.v1 import common_pb2, reports_pb2, telemetry_pb2
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import node_service_pb2 as wire
from tidemill.v1 import training_service_pb2 as training

CALLS = count(1000)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def job(world: World) -> str:
    """A job whose first attempt runs on n1."""
    stream = world.attach("n1")
    world.settle()
    name = world.admitted()
    began = reports_pb2.RunBegan(run=f"{name}.1.0")
    report = reports_pb2.Report(node="n1", incarnation=1, sequence=1, run_began=began)
    world.say(stream, report=report)
    world.settle()
    return name


def progress(job: str, attempt: int = 1, step: int = 5, **rest: object) -> telemetry_pb2.Progress:
    return telemetry_pb2.Progress(job=job, attempt=attempt, step=step, **rest)  # type: ignore[arg-type]


def say_progress(world: World, who: Caller, *items: telemetry_pb2.Progress) -> Result:
    call = next(CALLS)
    request = training.ReportProgressRequest(progress=items)
    world.gateway.trainers.report_progress(call, who, request, world.now)
    world.store()
    return world.answers[call]


def saved(job: str, step: int, attempt: int = 1) -> reports_pb2.Report:
    return reports_pb2.Report(
        saved=reports_pb2.Saved(
            job=job,
            attempt=attempt,
            step=step,
            uri=f"/ckpt/{step}",
            tier=common_pb2.TIER_REMOTE,
            reach=common_pb2.REACH_CELL,
            manifest="ab" * 32,
        )
    )


def say(world: World, who: Caller, report: reports_pb2.Report) -> Result:
    call = next(CALLS)
    request = training.ReportCheckpointRequest(report=report)
    world.gateway.trainers.report_checkpoint(call, who, request, world.now)
    world.store()
    return world.answers[call]


def test_progress_is_published_and_shown(world: World, job: str) -> None:
    said = progress(job, step=7, step_us=1500, token="secret", metrics={"loss": 0.5})
    answer = say_progress(world, trainer(job, 1), said)
    view = world.gateway.reads.job(job)
    (record,) = [record for record in world.stored if record.topic == "progress"]
    assert answer == training.ReportProgressResponse()
    assert (view.seen_step, view.step_us, dict(view.metrics)) == (7, 1500, {"loss": 0.5})
    assert (record.key, b"secret" in record.value) == (job.encode(), False)
    stored = telemetry_pb2.Progress.FromString(record.value)
    assert stored.token == progress_proof(job_token(KEY, job, 1), stored)


def test_progress_never_goes_back_and_of_an_older_attempt_counts_for_nothing(
    world: World, job: str
) -> None:
    say_progress(world, trainer(job, 1), progress(job, step=9))
    say_progress(world, trainer(job, 1), progress(job, step=4, rank=1))
    assert world.gateway.reads.job(job).seen_step == 9


def test_a_checkpoint_is_answered_when_durable_and_then_recorded(world: World, job: str) -> None:
    answer = say(world, trainer(job, 1), saved(job, 10))
    world.settle()
    assert answer == training.ReportCheckpointResponse()
    assert world.gateway.cluster.jobs[job].durable_step == 10  # type: ignore[index]
    assert world.last_report().principal == common_pb2.Principal(
        name=f"job:{job}", method="job-token"
    )


def test_a_trainers_reports_are_in_one_order_with_those_of_the_agent_beside_it(
    world: World, job: str
) -> None:
    """However many partitions there are: the leader must read that training finished before it reads of the end."""
    say(world, trainer(job, 1), saved(job, 10))
    assert {record.key for record in world.stored if record.topic == "reports"} == {b"n1"}


def test_a_gateway_that_has_yet_to_read_of_an_attempt_is_asked_again(
    world: World, job: str
) -> None:
    with pytest.raises(Refusal) as caught:
        say(world, trainer(job, 2), saved(job, 10, 2))
    assert (caught.value.code, caught.value.retry_after_ms > 0) == ("attempt_not_seen_yet", True)


def test_a_report_that_could_not_be_stored_is_to_be_sent_again(world: World, job: str) -> None:
    world.failing = PortError("away")
    answer = say(world, trainer(job, 1), saved(job, 10))
    assert isinstance(answer, Refusal)
    assert (answer.status, answer.retry_after_ms > 0) == (Status.UNAVAILABLE, True)


@pytest.mark.parametrize("other", [("another", 1), (None, 2)])
def test_a_token_speaks_for_no_other_job_and_no_other_attempt(
    world: World, job: str, other: tuple[str | None, int]
) -> None:
    who = trainer(job, 1)
    name, attempt = other[0] or job, other[1]
    advice = training.GetAdviceRequest(job=name, attempt=attempt)
    for speak in (
        partial(say_progress, world, who, progress(job), progress(name, attempt)),
        partial(say, world, who, saved(name, 1, attempt)),
        partial(world.gateway.trainers.get_advice, who, advice),
    ):
        with pytest.raises(Refusal) as caught:
            speak()
        assert caught.value.code == "other_attempt"


def test_an_attempt_that_is_over_is_told_so(world: World, job: str) -> None:
    world.change(jobs.CancelJobRequest(job=job))
    world.settle()
    still_stopping = say(world, trainer(job, 1), saved(job, 10))
    stream = world.attach("n1")
    world.settle()
    world.finished(stream, "n1", f"{job}.1.0", sequence=2)
    world.settle()
    with pytest.raises(Refusal) as caught:
        say(world, trainer(job, 1), saved(job, 20))
    assert still_stopping == training.ReportCheckpointResponse()
    assert (caught.value.status, caught.value.code) == (
        Status.FAILED_PRECONDITION,
        "attempt_over",
    )


@pytest.mark.parametrize(
    "report",
    [
        reports_pb2.Report(run_began=reports_pb2.RunBegan(run="x.1.0")),
        reports_pb2.Report(
            run_finished=reports_pb2.RunFinished(
                run="x.1.0", evidence=common_pb2.EVIDENCE_EXIT_STATUS
            )
        ),
    ],
    ids=["began", "finished"],
)
def test_a_trainer_does_not_report_what_only_agents_see(
    world: World, job: str, report: reports_pb2.Report
) -> None:
    with pytest.raises(Refusal) as caught:
        say(world, trainer(job, 1), report)
    assert caught.value.code == "not_a_trainers_report"


def test_advice_says_where_to_start_and_what_may_go(world: World, job: str) -> None:
    for step in (10, 20, 30):
        say(world, trainer(job, 1), saved(job, step))
        world.settle()
    advice = world.gateway.trainers.get_advice(
        trainer(job, 1), training.GetAdviceRequest(job=job, attempt=1)
    )
    assert (advice.durable_step, list(advice.released_steps), advice.resume.step) == (30, [10], 0)


def test_advice_on_an_attempt_that_the_gateway_has_not_read_yet_is_retryable(
    world: World, job: str
) -> None:
    with pytest.raises(Refusal) as caught:
        world.gateway.trainers.get_advice(
            trainer(job, 2), training.GetAdviceRequest(job=job, attempt=2)
        )
    assert (caught.value.code, caught.value.retry_after_ms > 0) == ("attempt_not_seen_yet", True)


def test_an_early_save_reaches_the_agent_and_its_answer_the_log(world: World, job: str) -> None:
    stream = world.attach("n1")
    world.settle()
    world.pulled(stream)
    world.change(jobs.RequeueJobRequest(job=job, save_first=True))
    world.settle()
    ((asked,),) = [each.changed for each in world.desired(stream)]
    answered = reports_pb2.SaveAnswered(job=job, attempt=1, ask=1, at_step=40)
    say(world, trainer(job, 1), reports_pb2.Report(save_answered=answered))
    world.settle()
    ((told,),) = [each.changed for each in world.desired(stream)]
    assert (asked.save_ask, asked.save_at_step, asked.stop_after_save) == (1, 0, True)
    assert (told.save_at_step, told.action) == (40, wire.RUN_ACTION_RUN)
