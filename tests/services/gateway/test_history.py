"""History for people: every kind of fact has its sentence; a walk and a trail tell the same."""

from __future__ import annotations

import threading
import typing
from collections.abc import Sequence

import msgspec
import pytest

from services.gateway.history import SENTENCES, About
from services.gateway.names import find_subject
from services.gateway.refold import (
    LINES_MAX,
    Cancelled,
    Walk,
    history,
    picked,
)
from services.gateway.refusal import Refusal
from services.gateway.trail import Trail
from services.runtime import codec
from statemachines.facts import Fact, JobHeld, JobReleased
from statemachines.values import JobId, NodeId, Reason
from tests.services.gateway.logs import Asked, Chain, lived, log_of
from tests.services.gateway.world import CELL, World
from tidemill.v1 import job_service_pb2 as jobs

GO_ON = threading.Event()


@pytest.fixture
def world() -> World:
    return lived()


def texts(lines: Sequence[jobs.HistoryLine]) -> list[str]:
    return [line.fact for line in lines]


# --- sentences


def test_every_kind_of_fact_has_its_sentence_and_nothing_else_has_one() -> None:
    assert set(SENTENCES) == set(typing.get_args(Fact))


@pytest.mark.parametrize("kind", SENTENCES, ids=lambda kind: kind.__name__)
def test_every_sentence_can_be_said_of_an_empty_fact(kind: type[msgspec.Struct]) -> None:
    fact = example(kind)
    text = SENTENCES[kind](fact)
    assert text.split()
    assert not {"None", "Struct", "<"} & set(text.split())


def example(kind: type) -> object:
    """A value of the type with the plainest field values there are."""
    hints = typing.get_type_hints(kind)
    return kind(**{field: plainest(hints[field]) for field in kind.__struct_fields__})  # type: ignore[attr-defined]


def plainest(hint: object) -> object:
    kind = getattr(hint, "__supertype__", hint)
    if typing.get_origin(kind) is tuple:
        return ()
    if isinstance(kind, type) and issubclass(kind, str) and kind is not str:
        return next(iter(kind))  # type: ignore[call-overload]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return example(kind)
    assert isinstance(kind, type), kind
    return kind()


# --- whom a fact is about


def test_a_jobs_history_is_the_same_by_walking_as_it_happened(world: World) -> None:
    job = world.gateway.cluster.job_at(1)
    assert job is not None
    lines = history(Walk(log_of(world), CELL).steps(GO_ON), job.id)
    assert texts(lines) == [
        "JobAdmitted", "GangPlaced", "RunEnded", "AttemptEnded",
    ]  # fmt: skip
    assert [line.offset for line in lines] == sorted(line.offset for line in lines)
    assert lines[0].by == "user:alice"


def test_the_trail_of_the_live_fold_leads_to_the_same_history(world: World) -> None:
    for job in world.gateway.cluster.jobs:
        offsets = world.gateway.trail.offsets(job)
        lines = history(Walk(log_of(world), CELL).steps(GO_ON), job)
        assert sorted(set(offsets)) == sorted({line.offset for line in lines})
        assert world.gateway.trail.is_whole(job)


def test_a_trail_that_began_after_a_job_says_that_it_is_not_whole(world: World) -> None:
    later = Trail(world.gateway.cluster)
    job = next(iter(world.gateway.cluster.jobs))
    assert (later.is_whole(job), list(later.offsets(job))) == (False, [])


def test_a_nodes_history_holds_its_runs_ends(world: World) -> None:
    lines = history(Walk(log_of(world), CELL).steps(GO_ON), "n1")
    assert texts(lines) == ["NodeJoined", "GangPlaced", "RunEnded", "GangPlaced"]


def test_a_queues_history_is_found_too(world: World) -> None:
    lines = history(Walk(log_of(world), CELL).steps(GO_ON), "default")
    assert texts(lines) == ["QueueApplied"]


def test_an_arrays_history_is_its_jobs(world: World) -> None:
    array = world.admitted("r3", count=2, devices=0)
    lines = history(Walk(log_of(world), CELL).steps(GO_ON), array)
    one = history(Walk(log_of(world), CELL).steps(GO_ON), f"{array}_1")
    assert texts(lines) == ["JobAdmitted", "GangPlaced", "GangPlaced"]
    assert texts(one) == ["JobAdmitted", "GangPlaced"]


def test_a_number_leads_to_its_job_in_the_log_alone(world: World) -> None:
    array = world.admitted("r3", count=2, devices=0)
    for number, job in enumerate((*world.gateway.cluster.jobs,), start=1):
        by_number = history(Walk(log_of(world), CELL).steps(GO_ON), str(number))
        assert by_number == history(Walk(log_of(world), CELL).steps(GO_ON), job) != []
    assert history(Walk(log_of(world), CELL).steps(GO_ON), "5") == []
    assert [job.startswith(array) for job in world.gateway.cluster.jobs] == [
        False,
        False,
        True,
        True,
    ]


def test_what_a_history_is_asked_of_is_found_as_everywhere(world: World) -> None:
    cluster = world.gateway.cluster
    array = world.admitted("r3", count=2, devices=0)
    job = next(iter(cluster.jobs))
    assert find_subject(cluster, "1") == find_subject(cluster, job[:6]) == job
    assert [find_subject(cluster, name) for name in ("n1", "default", array, "gone")] == [
        "n1", "default", array, "gone",
    ]  # fmt: skip
    with pytest.raises(Refusal, match="several"):
        find_subject(cluster, "")


def test_history_is_bounded_by_time(world: World) -> None:
    moved = world.log[2:]
    entry = codec.decode_entry(moved[0].offset, moved[0].value)
    job = world.gateway.cluster.job_at(1)
    assert job is not None
    whole = history(Walk(log_of(world), CELL).steps(GO_ON), job.id)
    none = history(Walk(log_of(world), CELL).steps(GO_ON), job.id, from_ms=entry.at_ms + 1)
    upto = history(Walk(log_of(world), CELL).steps(GO_ON), job.id, to_ms=entry.at_ms - 1)
    assert (len(whole), none, upto) == (4, [], [])


def test_a_long_history_keeps_its_beginning_and_its_newest_lines() -> None:
    log = Chain()
    for number in range(LINES_MAX + 500):
        fact = JobHeld(JobId("j"), Reason(str(number))) if number else JobReleased(JobId("j"))
        log.append_entry(fact)
    lines = history(Walk(log, CELL).steps(GO_ON), "j")
    assert (len(lines), lines[0].fact, lines[1].text, lines[-1].text) == (
        LINES_MAX,
        "JobReleased",
        "held: 501",
        f"held: {LINES_MAX + 499}",
    )


def test_about_nothing_it_was_not_asked_about() -> None:
    about = About("n1")
    assert not about(JobReleased(JobId("j")))
    assert about(example_node("n1"))


def example_node(name: str) -> Fact:
    from statemachines.facts import NodeRecovered

    return NodeRecovered(NodeId(name))


# --- picked records


def test_of_a_long_trail_only_what_is_shown_is_read() -> None:
    log = Asked()
    count = LINES_MAX + 100
    for _ in range(count):
        log.append_entry(JobReleased(JobId("j")))
    lines = history(picked(log, range(count), GO_ON), "j")
    assert log.asked == [0, *range(count - LINES_MAX + 1, count)]
    assert [each.offset for each in lines] == log.asked


def test_a_short_trail_is_read_whole() -> None:
    log = Asked()
    for _ in range(3):
        log.append_entry(JobReleased(JobId("j")))
    assert [len(history(picked(log, range(n), GO_ON), "j")) for n in range(4)] == [0, 1, 2, 3]


def test_picking_ends_when_nobody_waits_any_more() -> None:
    log, stop = Asked(), threading.Event()
    for _ in range(3):
        log.append_entry(JobReleased(JobId("j")))
    steps = picked(log, range(3), stop)
    next(steps)
    stop.set()
    with pytest.raises(Cancelled):
        next(steps)
    assert log.asked == [0]
