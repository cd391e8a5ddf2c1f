"""What a submitter is told, and when."""

from __future__ import annotations

import pytest

from services.gateway.effects import WRITES_MAX
from services.gateway.pending import RETRY_AFTER_FULL_MS, WAIT_MAX_MS
from services.gateway.refusal import Status
from services.runtime.ids import blob_digest
from services.runtime.ports import PortError, StorageFullError
from tests.services.gateway.world import ALICE, BOB, World, submission
from tidemill.v1 import common_pb2, requests_pb2
from tidemill.v1 import job_service_pb2 as jobs

ADMITTED = jobs.SUBMIT_STATUS_ADMITTED
DURABLE = jobs.SUBMIT_STATUS_DURABLE


@pytest.fixture
def world() -> World:
    return World()


def test_a_submission_is_admitted_only_once_the_log_shows_it(world: World) -> None:
    call = world.submit(submission())
    seen = [call in world.answers]
    world.store()
    seen.append(call in world.answers)
    world.decide()
    seen.append(call in world.answers)
    world.show()
    assert (seen, world.submitted(call)) == (
        [False, False, False],
        jobs.SubmitJobResponse(job=world.submitted(call).job, status=ADMITTED, number=1),
    )


def test_durable_only_is_answered_when_stored_and_not_before(world: World) -> None:
    call = world.submit(submission(durable_only=True))
    before = call in world.answers
    world.store()
    assert (before, world.submitted(call).status) == (False, DURABLE)


def test_a_caller_whose_time_is_nearly_over_is_told_durable(world: World) -> None:
    call = world.submit(submission(), within_ms=1_000)
    world.store()
    world.pass_ms(890)
    early = call in world.answers
    world.pass_ms(20)
    assert (early, world.submitted(call).status) == (False, DURABLE)


def test_what_is_not_durable_in_time_is_to_be_sent_again_with_the_same_id(world: World) -> None:
    call = world.submit(submission(request_id=""), within_ms=1_000)
    world.pass_ms(1_000)
    refusal = world.refusal(call)
    assert (refusal.status, refusal.code, "'made-1'" in refusal.message) == (
        Status.UNAVAILABLE,
        "not_durable_in_time",
        True,
    )


def test_a_caller_without_a_deadline_does_not_wait_for_ever(world: World) -> None:
    call = world.submit(submission())
    world.store()
    world.pass_ms(WAIT_MAX_MS)
    assert world.submitted(call).status == DURABLE


def test_a_failed_write_is_said_to_be_retryable_and_names_the_request(world: World) -> None:
    world.failing = PortError("the broker is away")
    call = world.submit(submission("r7"))
    world.store()
    refusal = world.refusal(call)
    assert (refusal.status, refusal.code, refusal.retry_after_ms > 0) == (
        Status.UNAVAILABLE,
        "log_unavailable",
        True,
    )
    assert "'r7'" in refusal.message


def test_a_full_disk_is_told_as_such_and_retried_later(world: World) -> None:
    world.failing = StorageFullError("no space left")
    call = world.submit(submission())
    world.store()
    assert (world.refusal(call).code, world.refusal(call).retry_after_ms) == (
        "storage_full",
        RETRY_AFTER_FULL_MS,
    )


def test_after_a_failed_write_the_same_request_can_be_sent_again(world: World) -> None:
    world.failing = PortError("the broker is away")
    first = world.submit(submission())
    world.store()
    world.failing = None
    again = world.submit(submission())
    world.settle()
    assert (world.refusal(first).code, world.submitted(again).status) == (
        "log_unavailable",
        ADMITTED,
    )


def test_a_repeat_gets_the_first_answer_and_stores_nothing(world: World) -> None:
    first = world.submit(submission())
    world.settle()
    stored = len(world.stored)
    again = world.submit(submission())
    world.settle()
    assert (world.submitted(again), len(world.stored)) == (world.submitted(first), stored)


def test_a_repeat_on_the_way_joins_the_first(world: World) -> None:
    first = world.submit(submission())
    again = world.submit(submission())
    world.settle()
    assert world.submitted(first) == world.submitted(again)
    assert len(world.stored) == 1


def test_one_id_with_other_content_is_refused_at_once_while_the_first_is_on_its_way(
    world: World,
) -> None:
    world.submit(submission())
    other = world.submit(submission(argv=["something", "else"]))
    refusal = world.refusal(other)
    assert (refusal.status, refusal.code, refusal.violations[0].field) == (
        Status.ALREADY_EXISTS,
        "request_id_reused",
        "request_id",
    )


def test_one_id_with_other_content_is_refused_after_the_first_was_decided(world: World) -> None:
    first = world.submit(submission())
    world.settle()
    other = world.submit(submission(priority=5))
    assert world.refusal(other).code == "request_id_reused"
    assert world.submitted(first).status == ADMITTED


def test_one_id_with_other_content_at_two_gateways_is_settled_by_the_leader(world: World) -> None:
    second = world.start_gateway()
    first_call = world.submit(submission())
    other_call = world.submit(submission(priority=5), gateway=second)
    world.settle()
    assert world.submitted(first_call).status == ADMITTED
    assert world.refusal(other_call).status is Status.ALREADY_EXISTS


def test_a_gateway_that_was_restarted_answers_a_repeat_from_the_log(world: World) -> None:
    first = world.submit(submission())
    world.store()  # Durable, and the gateway dies here.
    world.gateways.clear()
    world.gateway = world.start_gateway()
    again = world.submit(submission())
    world.settle()
    assert first not in world.answers
    assert world.submitted(again).status == ADMITTED
    assert len(world.gateway.cluster.jobs) == 1


def test_the_same_request_of_another_principal_is_another_job(world: World) -> None:
    mine, theirs = world.submit(submission(), ALICE), world.submit(submission(), BOB)
    world.settle()
    assert world.submitted(mine).job != world.submitted(theirs).job


def test_a_refusal_of_the_leader_says_which_field_and_why(world: World) -> None:
    call = world.submit(submission(queue="nowhere"))
    world.settle()
    refusal = world.refusal(call)
    assert (refusal.status, refusal.code, [each.field for each in refusal.violations]) == (
        Status.NOT_FOUND,
        "unknown_queue",
        ["spec.queue"],
    )


def test_an_array_answers_with_the_number_of_its_first_job(world: World) -> None:
    world.admitted("r0")
    call = world.submit(submission(count=3))
    world.settle()
    assert world.submitted(call).number == 2
    assert len(world.gateway.cluster.jobs) == 4


def test_command_and_environment_are_a_blob_and_never_in_a_record(world: World) -> None:
    world.submit(submission(argv=["cmd-7f3a"], env={"SECRET": "hunter2"}))
    world.store()
    (record,) = world.stored
    (blob,) = world.blobs
    request = requests_pb2.Request.FromString(record.value)
    assert (b"hunter2" in record.value, b"cmd-7f3a" in record.value) == (False, False)
    assert request.submit_job.spec.launch == blob_digest(blob)
    assert common_pb2.Launch.FromString(blob).env == {"SECRET": "hunter2"}


def test_a_launch_digest_of_the_client_is_replaced(world: World) -> None:
    world.submit(submission(launch="0" * 64))
    world.store()
    request = requests_pb2.Request.FromString(world.stored[0].value)
    assert request.submit_job.spec.launch == blob_digest(world.blobs[0])


def test_every_record_says_who_asked_and_how_it_was_known(world: World) -> None:
    world.submit(submission("r1"))
    world.store()
    request = requests_pb2.Request.FromString(world.stored[0].value)
    assert (request.request, request.principal.name, request.principal.method, request.gateway) == (
        "user:alice/r1",
        "user:alice",
        "token",
        "gateway-0",
    )


def test_a_caller_who_left_is_not_answered_and_the_request_goes_on(world: World) -> None:
    call = world.submit(submission())
    world.gateway.requests.forget(call)
    world.settle()
    assert (call in world.answers, len(world.gateway.cluster.jobs)) == (False, 1)
    assert len(world.gateway.requests) == 0


def test_a_caller_who_left_before_it_was_stored_leaves_nothing_behind(world: World) -> None:
    call = world.submit(submission())
    world.gateway.requests.forget(call)
    world.store()
    assert len(world.gateway.requests) == 0


def test_a_log_that_takes_nothing_turns_callers_away_instead_of_filling_memory(
    world: World,
) -> None:
    for _ in range(WRITES_MAX):
        world.gateway.effects.publish([], lambda _error, _now: None)
    call = world.submit(submission())
    refusal = world.refusal(call)
    assert (refusal.status, refusal.code, refusal.retry_after_ms > 0) == (
        Status.UNAVAILABLE,
        "overloaded",
        True,
    )
    world.store()
    again = world.submit(submission())
    world.settle()
    assert world.submitted(again).status == ADMITTED
