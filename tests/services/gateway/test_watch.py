"""Watching jobs: first what is, then a marker, then every change; a slow watcher is cut and delays nobody."""

from __future__ import annotations

import pytest

from services.gateway.refusal import Refusal, Status
from services.gateway.watch import CHANGES_BEHIND_MAX, WATCHERS_MAX, Watcher
from tests.services.gateway.world import World, submission
from tidemill.v1 import job_service_pb2 as jobs


@pytest.fixture
def world() -> World:
    return World()


def watch(world: World, **filters: object) -> Watcher:
    return world.gateway.watch(jobs.WatchJobsRequest(filter=jobs.JobFilter(**filters)))  # type: ignore[arg-type]


def seen(world: World, watcher: Watcher) -> list[tuple[str, str] | str]:
    """(job, state) of each view, and "current" for the marker."""
    return [
        "current" if message.current else (message.job.job, message.job.state)  # type: ignore[attr-defined]
        for message in world.pulled(watcher)
    ]


def test_what_is_comes_first_then_the_marker_then_changes(world: World) -> None:
    job = world.admitted()
    watcher = watch(world)
    first = seen(world, watcher)
    world.change(jobs.HoldJobRequest(job=job))
    world.settle()
    assert (first, seen(world, watcher)) == ([(job, "queued"), "current"], [(job, "held")])


def test_nothing_to_show_still_brings_the_marker(world: World) -> None:
    assert seen(world, watch(world)) == ["current"]


def test_a_job_that_comes_later_is_shown(world: World) -> None:
    watcher = watch(world)
    seen(world, watcher)
    job = world.admitted()
    assert (job, "queued") in seen(world, watcher)


def test_the_end_of_a_watched_job_is_shown_though_ended_jobs_are_not_asked_for(
    world: World,
) -> None:
    job = world.admitted()
    watcher = watch(world)
    seen(world, watcher)
    world.change(jobs.CancelJobRequest(job=job))
    world.settle()
    assert seen(world, watcher) == [(job, "cancelled")]


def test_a_job_that_left_the_filter_is_shown_once_more_and_then_not(world: World) -> None:
    job = world.admitted()
    watcher = watch(world, states=["queued"])
    seen(world, watcher)
    world.change(jobs.HoldJobRequest(job=job))
    world.settle()
    left = seen(world, watcher)
    world.change(jobs.CancelJobRequest(job=job))
    world.settle()
    assert (left, seen(world, watcher)) == ([(job, "held")], [])


def test_a_job_not_yet_shown_is_shown_as_it_is_then_and_never_goes_back(world: World) -> None:
    job = world.admitted()
    watcher = watch(world)
    world.change(jobs.HoldJobRequest(job=job))
    world.settle()
    assert seen(world, watcher) == [(job, "held"), "current"]


def test_other_jobs_changes_are_not_shown(world: World) -> None:
    job = world.admitted("r1")
    watcher = watch(world, jobs=[job])
    seen(world, watcher)
    world.admitted("r2")
    assert seen(world, watcher) == []


def test_a_job_can_be_watched_before_it_is_admitted(world: World) -> None:
    world.admitted("r1")
    call = world.submit(submission("r2", durable_only=True))
    world.store()
    job = world.submitted(call).job
    watcher = watch(world, jobs=[job])
    before = seen(world, watcher)
    world.settle()
    assert before == ["current"]
    assert (job, "queued") in seen(world, watcher)


def test_a_watcher_that_does_not_read_is_cut_and_told_to_watch_again(world: World) -> None:
    watcher, other = watch(world), watch(world)
    seen(world, watcher)
    seen(world, other)
    message = jobs.WatchJobsResponse()
    for _ in range(CHANGES_BEHIND_MAX + 1):
        watcher.put(message)
    job = world.admitted()
    with pytest.raises(Refusal) as caught:
        watcher.pull(world.now)
    assert (caught.value.status, caught.value.code) == (Status.ABORTED, "watcher_too_slow")
    assert (job, "queued") in seen(world, other)


def test_a_watcher_that_was_cut_holds_no_memory(world: World) -> None:
    watcher = watch(world)
    for _ in range(CHANGES_BEHIND_MAX + 5):
        watcher.put(jobs.WatchJobsResponse())
    assert len(watcher._queue) == 0


def test_there_are_only_so_many_watchers(world: World) -> None:
    watchers = [watch(world) for _ in range(WATCHERS_MAX)]
    with pytest.raises(Refusal) as caught:
        watch(world)
    world.gateway.watchers.remove(watchers[0])
    watch(world)
    assert caught.value.code == "too_many_watchers"


def test_a_change_wakes_the_watcher(world: World) -> None:
    watcher = watch(world)
    seen(world, watcher)
    world.ready.clear()
    world.admitted()
    assert watcher in world.ready
