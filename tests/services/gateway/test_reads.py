"""What people see: jobs, nodes, queues, the cell; how a job is named; pages."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from services.gateway.names import Selection
from services.gateway.refusal import Refusal, Status
from services.gateway.views import RUNS_IN_LISTS
from statemachines.job import Job
from statemachines.values import JobId
from tests.services.gateway.world import ALICE, BOB, EYES, World
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import queue_service_pb2 as queues


@pytest.fixture
def world() -> World:
    return World()


def listed(world: World, **filters: object) -> list[str]:
    wanted = jobs.JobFilter(**filters)  # type: ignore[arg-type]
    response = world.gateway.reads.list_jobs(jobs.ListJobsRequest(filter=wanted))
    return [view.job for view in response.jobs]


def refused(world: World, job: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        world.gateway.reads.get_job(jobs.GetJobRequest(job=job))
    return caught.value


# --- names


def test_a_job_is_found_by_id_number_and_beginning(world: World) -> None:
    job = world.admitted()
    found = [world.gateway.reads.job(name).job for name in (job, "1", job[:3])]
    assert found == [job] * 3


def test_an_unknown_job_is_not_found_and_the_answer_says_where_to_look(world: World) -> None:
    refusal = refused(world, "zzz")
    assert (refusal.status, refusal.code) == (Status.NOT_FOUND, "unknown_job")
    assert "tidemill history zzz" in refusal.message


def test_an_ambiguous_beginning_lists_candidates(world: World) -> None:
    names = [world.admitted(f"r{i}") for i in range(60)]
    initials = [name[0] for name in names]
    letter = max(initials, key=initials.count)
    refusal = refused(world, letter)
    assert (refusal.status, refusal.code) == (Status.INVALID_ARGUMENT, "ambiguous_job")
    assert sum(name in refusal.message for name in names) == min(initials.count(letter), 5)


def test_an_array_is_said_to_be_one(world: World) -> None:
    array = world.admitted(count=2)
    refusal = refused(world, array)
    assert (refusal.code, f"{array}_0" in refusal.message) == ("is_array", True)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "%s", "\x00", "'; --", "é" * 64])
def test_a_name_that_looks_like_a_path_or_an_attack_is_only_unknown(
    world: World, name: str
) -> None:
    world.admitted()
    assert refused(world, name).code == "unknown_job"


def test_a_number_too_large_for_an_integer_is_only_unknown(world: World) -> None:
    assert refused(world, "9" * 100).code == "unknown_job"


# --- jobs


def test_a_whole_job_shows_attempts_runs_and_why_it_waits(world: World) -> None:
    waiting = world.admitted(devices=2)
    view = world.gateway.reads.job(waiting)
    assert (view.state, bool(view.reason.code), view.by, view.number) == (
        "queued",
        True,
        "user:alice",
        1,
    )
    world.attach("n1")
    world.settle()
    placed = world.gateway.reads.job(waiting)
    (attempt,) = placed.attempts
    assert (placed.state, [(run.node, run.state) for run in attempt.runs]) == (
        "starting",
        [("n1", "placed")],
    )
    assert (placed.offset, placed.seen_step) == (world.gateway.cluster.offset, -1)


def test_a_list_shows_runs_of_small_gangs_only(world: World) -> None:
    world.attach(*[f"n{i}" for i in range(10)])
    world.settle()
    world.admitted("small", members=RUNS_IN_LISTS, devices=1)
    world.admitted("large", members=RUNS_IN_LISTS + 1, devices=1)
    response = world.gateway.reads.list_jobs(jobs.ListJobsRequest())
    assert [len(view.attempts[0].runs) for view in response.jobs] == [0, RUNS_IN_LISTS]


def test_ended_jobs_are_listed_only_when_asked_for(world: World) -> None:
    live, ended = world.admitted("r1"), world.admitted("r2")
    world.change(jobs.CancelJobRequest(job=ended))
    world.settle()
    assert listed(world) == [live]
    assert listed(world, all=True) == [ended, live]
    assert listed(world, states=["cancelled"]) == [ended]
    assert listed(world, jobs=[ended]) == [ended]


def test_jobs_are_filtered_by_owner_queue_and_name(world: World) -> None:
    mine, theirs = world.admitted(who=ALICE), world.admitted(who=BOB, name="eval-7b")
    assert listed(world, by="user:bob") == [theirs]
    assert listed(world, name_contains="7b") == [theirs]
    assert listed(world, queue="default") == [theirs, mine]


def test_an_array_in_a_filter_stands_for_its_jobs(world: World) -> None:
    array = world.admitted(count=2)
    world.admitted("other")
    assert sorted(listed(world, jobs=[array])) == [f"{array}_0", f"{array}_1"]


def test_many_beginnings_in_a_filter_look_through_the_jobs_once(world: World) -> None:
    for number in range(40):
        world.admitted(f"many-{number}")
    passes: list[int] = []

    class Counted(dict[JobId, Job]):
        def __iter__(self) -> Iterator[JobId]:
            passes.append(1)
            return super().__iter__()

    cluster = copy.copy(world.gateway.cluster)
    cluster.jobs = Counted(cluster.jobs)
    beginnings = [job[:-1] for job in cluster.jobs.keys()]  # noqa: SIM118 - counts no pass
    selection = Selection(cluster, jobs.JobFilter(jobs=beginnings))
    assert (sorted(selection.jobs), len(passes)) == (sorted(dict(cluster.jobs)), 1)


def test_a_state_that_does_not_exist_is_refused_with_those_that_do(world: World) -> None:
    with pytest.raises(Refusal, match="queued, held"):
        listed(world, states=["runing"])


def test_pages_neither_repeat_nor_skip_while_jobs_come_and_go(world: World) -> None:
    names = [world.admitted(f"r{i}") for i in range(7)]
    seen: list[str] = []
    token = ""
    for _ in range(4):
        page = world.gateway.reads.list_jobs(jobs.ListJobsRequest(page_size=2, page_token=token))
        seen += [view.job for view in page.jobs]
        world.admitted(f"late-{token}")  # Newer than the first page: not on the others.
        token = page.next_page_token
    assert (seen, token) == (names[::-1], "")


def test_the_total_counts_every_page(world: World) -> None:
    for i in range(5):
        world.admitted(f"r{i}")
    page = world.gateway.reads.list_jobs(jobs.ListJobsRequest(page_size=2))
    assert (page.total, len(page.jobs)) == (5, 2)


def test_a_forged_page_token_is_refused(world: World) -> None:
    with pytest.raises(Refusal) as caught:
        world.gateway.reads.list_jobs(jobs.ListJobsRequest(page_token="x'1"))
    assert caught.value.code == "bad_page_token"


# --- nodes, queues, the cell


def test_nodes_show_what_is_free_and_who_holds_what(world: World) -> None:
    world.attach("n1")
    world.settle()
    job = world.admitted(devices=3)
    (view,) = world.gateway.reads.list_nodes(fleet.ListNodesRequest()).nodes
    assert (view.cpu_milli_free, view.memory_mib_free, list(view.runs), view.simulated) == (
        63_000,
        65_472,
        [f"{job}.1.0"],
        True,
    )
    assert [device.run for device in view.devices].count(f"{job}.1.0") == 3


def test_nodes_come_by_name_page_and_state(world: World) -> None:
    world.attach("n3", "n1", "n2")
    world.settle()
    first = world.gateway.reads.list_nodes(fleet.ListNodesRequest(page_size=2))
    rest = world.gateway.reads.list_nodes(
        fleet.ListNodesRequest(page_size=2, page_token=first.next_page_token)
    )
    lost = world.gateway.reads.list_nodes(fleet.ListNodesRequest(states=["lost"]))
    assert [view.node for view in (*first.nodes, *rest.nodes)] == ["n1", "n2", "n3"]
    assert (rest.next_page_token, first.total, lost.total) == ("", 3, 0)


def test_queues_and_the_cell_count_what_they_hold(world: World) -> None:
    world.attach("n1")
    world.settle()
    world.admitted("r1", devices=3)
    world.admitted("r2", devices=3)
    world.admitted("r3", held=True)
    (queue,) = world.gateway.reads.list_queues(queues.ListQueuesRequest()).queues
    cell = world.gateway.reads.get_cell(fleet.GetCellRequest(), lag_ms=7).cell
    assert (queue.devices_used, queue.jobs_waiting, queue.jobs_running, queue.jobs_held) == (
        3, 1, 1, 1,
    )  # fmt: skip
    assert (cell.devices, cell.devices_free, cell.nodes_ready, cell.jobs_waiting) == (4, 1, 1, 1)
    assert (cell.leader, cell.term, cell.lag_ms, cell.simulated_devices) == ("leader", 1, 7, True)


# --- whose output


def test_output_is_for_the_owner_and_for_viewers(world: World) -> None:
    world.attach("n1")
    world.settle()
    job = world.admitted(who=ALICE)
    request = jobs.ReadLogsRequest(job=job)
    owner = world.gateway.reads.run_of(ALICE, request).id
    viewer = world.gateway.reads.run_of(EYES, request).id
    with pytest.raises(Refusal) as caught:
        world.gateway.reads.run_of(BOB, request)
    assert (owner, viewer, caught.value.code) == (f"{job}.1.0", f"{job}.1.0", "not_owner")


@pytest.mark.parametrize(
    ("fields", "code"), [({"rank": 3}, "no_rank"), ({"attempt": 9}, "not_placed_yet")]
)
def test_a_rank_or_attempt_that_is_not_there_is_said_to_be_so(
    world: World, fields: dict[str, int], code: str
) -> None:
    world.attach("n1")
    world.settle()
    job = world.admitted()
    with pytest.raises(Refusal) as caught:
        world.gateway.reads.run_of(ALICE, jobs.ReadLogsRequest(job=job, **fields))  # type: ignore[arg-type]
    assert caught.value.code == code


def test_output_of_a_job_that_was_not_placed_yet_says_where_to_ask_why(world: World) -> None:
    job = world.admitted()
    with pytest.raises(Refusal, match=f"tidemill why {job}"):
        world.gateway.reads.run_of(ALICE, jobs.ReadLogsRequest(job=job))


def test_output_of_a_job_that_ended_without_running_will_never_be(world: World) -> None:
    job = world.admitted()
    world.change(jobs.CancelJobRequest(job=job))
    world.settle()
    with pytest.raises(Refusal) as caught:
        world.gateway.reads.run_of(ALICE, jobs.ReadLogsRequest(job=job))
    assert caught.value.code == "no_attempt"
