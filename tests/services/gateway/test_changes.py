"""Changes of jobs, nodes and queues: who may ask, and how a decision is answered."""

from __future__ import annotations

import pytest

from services.gateway.refusal import Status
from tests.services.gateway.world import ALICE, BOB, ROOT, World
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import queue_service_pb2 as queues
from tidemill.v1 import requests_pb2


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("request_of", "state"),
    [
        (lambda job: jobs.CancelJobRequest(job=job, message="no"), "cancelled"),
        (lambda job: jobs.HoldJobRequest(job=job), "held"),
    ],
)
def test_a_change_of_a_job_is_answered_with_the_job_as_decided(
    world: World, request_of: object, state: str
) -> None:
    job = world.admitted()
    call = world.change(request_of(job))  # type: ignore[operator]
    early = call in world.answers
    world.settle()
    assert (early, world.answers[call].job.state) == (False, state)  # type: ignore[union-attr]


def test_release_and_requeue_bring_a_job_back(world: World) -> None:
    job = world.admitted(held=True)
    release = world.change(jobs.ReleaseJobRequest(job=job))
    world.settle()
    cancel = world.change(jobs.CancelJobRequest(job=job))
    world.settle()
    requeue = world.change(jobs.RequeueJobRequest(job=job))
    world.settle()
    states = [world.answers[call].job.state for call in (release, cancel, requeue)]  # type: ignore[union-attr]
    assert states == ["queued", "cancelled", "queued"]


def test_a_user_may_not_change_anothers_job_and_an_admin_may(world: World) -> None:
    job = world.admitted(who=ALICE)
    theirs = world.change(jobs.CancelJobRequest(job=job), BOB)
    assert (world.refusal(theirs).status, world.refusal(theirs).code) == (
        Status.PERMISSION_DENIED,
        "not_owner",
    )
    by_root = world.change(jobs.CancelJobRequest(job=job), ROOT)
    world.settle()
    assert world.answers[by_root].job.state == "cancelled"  # type: ignore[union-attr]


def test_a_request_id_of_one_change_is_not_the_answer_to_another(world: World) -> None:
    job = world.admitted()
    held = world.change(jobs.HoldJobRequest(job=job, request_id="once"))
    world.settle()
    cancelled = world.change(jobs.CancelJobRequest(job=job, request_id="once"))
    world.settle()
    assert world.answers[held].job.state == "held"  # type: ignore[union-attr]
    assert world.refusal(cancelled).code == "request_id_reused"
    assert world.gateway.reads.job(job).state == "held"


def test_a_change_that_the_leader_refuses_says_why(world: World) -> None:
    job = world.admitted()
    call = world.change(jobs.ReleaseJobRequest(job=job))
    world.settle()
    refusal = world.refusal(call)
    assert (refusal.status, refusal.code, bool(refusal.message)) == (
        Status.FAILED_PRECONDITION,
        "bad_state",
        True,
    )


def test_a_change_that_no_leader_decides_in_time_is_durable_and_says_so(world: World) -> None:
    job = world.admitted()
    call = world.change(jobs.CancelJobRequest(job=job, request_id="c1"), within_ms=1_000)
    world.store()
    world.pass_ms(1_000)
    refusal = world.refusal(call)
    assert (refusal.status, refusal.code) == (Status.DEADLINE_EXCEEDED, "durable_not_decided")
    assert "'c1'" in refusal.message


def test_a_repeated_change_is_answered_again_and_stored_once(world: World) -> None:
    job = world.admitted()
    first = world.change(jobs.CancelJobRequest(job=job, request_id="c1"))
    world.settle()
    stored = len(world.stored)
    again = world.change(jobs.CancelJobRequest(job=job, request_id="c1"))
    world.settle()
    assert (len(world.stored), type(world.answers[again])) == (stored, type(world.answers[first]))


def test_changes_without_an_id_are_each_a_request_of_their_own(world: World) -> None:
    job = world.admitted()
    world.change(jobs.HoldJobRequest(job=job))
    world.settle()
    world.change(jobs.ReleaseJobRequest(job=job))
    world.settle()
    world.change(jobs.HoldJobRequest(job=job))
    world.settle()
    assert world.gateway.cluster.jobs[job].state == "held"  # type: ignore[index]


def test_an_array_is_changed_as_one(world: World) -> None:
    array = world.admitted(count=3)
    call = world.change(jobs.CancelJobRequest(job=array))
    world.settle()
    states = {job.state.value for job in world.gateway.cluster.jobs.values()}
    assert (states, world.answers[call].job.state) == ({"cancelled"}, "cancelled")  # type: ignore[union-attr]


def test_a_job_is_changed_by_its_number_or_the_beginning_of_its_id(world: World) -> None:
    job = world.admitted()
    world.change(jobs.HoldJobRequest(job="1"))
    world.settle()
    world.change(jobs.ReleaseJobRequest(job=job[:4]))
    world.settle()
    kinds = [
        requests_pb2.Request.FromString(record.value).WhichOneof("kind")
        for record in world.stored
        if record.topic == "requests"
    ]
    assert kinds == ["submit_job", "hold_job", "release_job"]
    assert world.gateway.cluster.jobs[job].state == "queued"  # type: ignore[index]


def test_nodes_are_cordoned_drained_confirmed_dead_and_removed(world: World) -> None:
    world.attach("n1")
    world.settle()
    told = []
    for request in (
        fleet.CordonNodeRequest(node="n1", message="fans"),
        fleet.UncordonNodeRequest(node="n1"),
        fleet.DrainNodeRequest(node="n1", within_ms=60_000),
    ):
        call = world.change(request, ROOT)
        world.settle()
        told.append(world.answers[call].node.service)  # type: ignore[union-attr]
    world.lose("n1")
    dead = world.change(fleet.ConfirmNodeDeadRequest(node="n1"), ROOT)
    world.settle()
    removed = world.change(fleet.RemoveNodeRequest(node="n1"), ROOT)
    world.settle()
    assert told == ["cordoned", "in_service", "drained"]
    assert world.answers[dead].node.state == "lost"  # type: ignore[union-attr]
    assert world.answers[removed] == fleet.RemoveNodeResponse()
    assert world.gateway.cluster.nodes == {}


def test_an_unknown_node_is_not_found_before_anything_is_stored(world: World) -> None:
    call = world.change(fleet.CordonNodeRequest(node="nope"), ROOT)
    assert (world.refusal(call).status, world.refusal(call).code, world.stored) == (
        Status.NOT_FOUND,
        "unknown_node",
        [],
    )


def test_queues_are_applied_and_removed(world: World) -> None:
    wanted = requests_pb2.ApplyQueue(
        queue="lab", parent="default", device_limit=8, cpu_milli_limit=-1, job_limit=-1
    )
    applied = world.change(queues.ApplyQueueRequest(queue=wanted), ROOT)
    world.settle()
    removed = world.change(queues.RemoveQueueRequest(queue="lab"), ROOT)
    world.settle()
    assert world.answers[applied].queue.device_limit == 8  # type: ignore[union-attr]
    assert world.answers[removed] == queues.RemoveQueueResponse()


def test_a_queue_that_holds_jobs_is_not_removed(world: World) -> None:
    world.admitted()
    call = world.change(queues.RemoveQueueRequest(queue="default"), ROOT)
    world.settle()
    assert world.refusal(call).code == "queue_not_empty"
