"""Rules of restarting the children of a cell."""

from __future__ import annotations

from services.up.supervision import (
    FIRST_WAIT_MS,
    LONGEST_WAIT_MS,
    WELL_AFTER_MS,
    Again,
    Down,
    Supervision,
)


def test_first_unexpected_end_is_answered_at_once() -> None:
    watch = Supervision(final=[78])
    watch.started("gateway", 1000)
    assert watch.ended("gateway", -9, 1500) == Again("gateway", -9, 1500)
    assert watch.due(1500) == ["gateway"]


def test_a_child_that_keeps_ending_is_started_later_and_later_up_to_a_bound() -> None:
    watch = Supervision(final=[])
    now_ms, waits = 0, []
    for _ in range(12):
        watch.started("scheduler", now_ms)
        again = watch.ended("scheduler", 1, now_ms)
        assert isinstance(again, Again)
        waits.append(again.at_ms - now_ms)
        now_ms = again.at_ms
    assert waits[:4] == [0, FIRST_WAIT_MS, 2 * FIRST_WAIT_MS, 4 * FIRST_WAIT_MS]
    assert waits[-1] == LONGEST_WAIT_MS


def test_a_child_that_lived_long_is_started_at_once_again() -> None:
    watch = Supervision(final=[])
    for _ in range(4):
        watch.started("agent", 0)
        watch.ended("agent", 1, 0)
    watch.started("agent", 0)
    assert watch.ended("agent", 1, WELL_AFTER_MS) == Again("agent", 1, WELL_AFTER_MS)


def test_an_end_that_a_person_must_mend_is_not_answered() -> None:
    watch = Supervision(final=[78])
    watch.started("scheduler", 0)
    assert watch.ended("scheduler", 78, 10) == Down("scheduler", 78, over=False)
    assert watch.due(10**9) == []
    assert watch.next_due_ms() is None


def test_a_cell_goes_on_while_one_of_each_needed_group_can_run() -> None:
    watch = Supervision(final=[78], needed=[["gateway"], ["scheduler-0", "scheduler-1"]])
    names = ("health", "scheduler-0", "agent", "scheduler-1")
    assert [watch.ended(name, 78, 0) for name in names] == [
        Down("health", 78, over=False),
        Down("scheduler-0", 78, over=False),
        Down("agent", 78, over=False),
        Down("scheduler-1", 78, over=True),
    ]


def test_a_cell_without_its_gateway_is_over() -> None:
    watch = Supervision(final=[78], needed=[["gateway"], ["scheduler"]])
    assert watch.ended("gateway", 78, 0) == Down("gateway", 78, over=True)


def test_due_children_come_in_the_order_of_their_times() -> None:
    watch = Supervision(final=[])
    for name in ("a", "b"):
        watch.started(name, 0)
        watch.ended(name, 1, 0)
        watch.started(name, 0)
    watch.ended("b", 1, 0)
    watch.ended("a", 1, 5)
    assert watch.next_due_ms() == FIRST_WAIT_MS
    assert watch.due(FIRST_WAIT_MS) == ["b"]
    assert watch.due(FIRST_WAIT_MS + 5) == ["b", "a"]
