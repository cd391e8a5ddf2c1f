"""The chain rule: which entries the fold takes. Late, duplicated, reordered, foreign: each leaves the right state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from statemachines import snapshot
from statemachines.cluster import Cluster
from statemachines.entry import Entry
from statemachines.facts import JobHeld, JobReleased, TermOpened
from statemachines.values import JobId, Reason
from tests.statemachines.tour import tour
from tests.statemachines.world import CELL, World, ready

J: Final = JobId("j")
HELD: Final = JobHeld(J, Reason("held", ""))


@pytest.fixture
def world() -> World:
    world = ready()
    world.admit("j")
    return world


def again(world: World) -> tuple[Entry, bytes]:
    return world.entries[-1], world.stored[-1]


def after_a_gap(world: World) -> tuple[Entry, bytes]:
    """The entry before it was never stored."""
    missing, _ = world.entry(HELD)
    return world.entry(JobReleased(J), prev=missing.digest)


def of_an_older_term(world: World) -> tuple[Entry, bytes]:
    """A replaced leader that has read to the end and writes on."""
    world.open_term("leader-2")
    return world.entry(HELD, term=1)


def of_a_leader_that_was_replaced_while_it_slept(world: World) -> tuple[Entry, bytes]:
    late = world.entry(HELD)
    world.open_term("leader-2")
    return late


def of_another_cell(world: World) -> tuple[Entry, bytes]:
    return world.entry(HELD, cell="other")


VOID: Final[tuple[tuple[Callable[[World], tuple[Entry, bytes]], str], ...]] = (
    (again, "does not extend the head"),
    (after_a_gap, "does not extend the head"),
    (of_a_leader_that_was_replaced_while_it_slept, "does not extend the head"),
    (of_an_older_term, "term 1 is over: the log is at term 2"),
    (of_another_cell, "of cell other, not test"),
)


@pytest.mark.parametrize(("make", "why"), VOID, ids=[make.__name__ for make, _ in VOID])
def test_a_void_entry_is_counted_and_changes_nothing(
    world: World, make: Callable[[World], tuple[Entry, bytes]], why: str
) -> None:
    entry, stored = make(world)
    state, voided, offset = (
        snapshot.encode(world.cluster),
        world.cluster.voided,
        world.cluster.offset,
    )
    assert world.cluster.void_reason(entry) == why
    assert not world.append(entry, stored)
    assert snapshot.encode(world.cluster) == state
    assert (world.cluster.voided, world.cluster.offset) == (voided + 1, max(offset, entry.offset))
    world.record(HELD)  # The right leader is not disturbed.
    assert world.cluster.jobs[J].reason == Reason("held", "")


def test_two_entries_in_the_wrong_order_leave_the_first_of_the_chain(world: World) -> None:
    first, first_stored = world.entry(HELD)
    second, second_stored = world.entry(JobReleased(J), prev=first.digest)
    assert not world.append(second, second_stored)
    assert world.append(first, first_stored)
    assert world.cluster.jobs[J].state == "held"
    assert world.cluster.head == first.digest


def test_of_two_leaders_that_name_one_head_the_first_stored_leads(world: World) -> None:
    mine = world.entry(TermOpened(2, "leader-2", "n", 1), term=2)
    other = world.entry(TermOpened(3, "leader-3", "n", 1), term=3)
    assert world.append(*other)
    assert not world.append(*mine)
    assert (world.cluster.leader, world.cluster.term, world.cluster.voided) == ("leader-3", 3, 1)


def test_an_entry_says_why_it_would_be_taken_with_an_empty_reason(world: World) -> None:
    assert world.cluster.void_reason(world.entry(HELD)[0]) == ""


def test_duplicates_of_every_record_fold_to_the_same_state() -> None:
    told = tour()
    twice = Cluster(CELL)
    for entry in told.entries:
        assert twice.fold(entry)
        assert not twice.fold(entry)
    assert snapshot.encode(twice) == snapshot.encode(told.cluster)
    assert twice.voided == len(told.entries)


def test_a_leader_that_applies_ahead_and_settles_later_reaches_the_readers_state() -> None:
    told = tour()
    leader = Cluster(CELL)
    for entry in told.entries:
        for recorded in entry.facts:
            leader.apply(recorded, entry.at_ms)
        leader.seal(entry)
    for entry in told.entries:
        leader.settle(entry)
    assert snapshot.encode(leader) == snapshot.encode(told.cluster)
    assert leader.offset == told.cluster.offset
    leader.skip(leader.offset + 1)
    assert (leader.voided, leader.offset) == (1, told.cluster.offset + 1)
