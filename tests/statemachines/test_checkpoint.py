"""The lifecycle of a checkpoint: every pair, and which ones of a job are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import pytest
from msgspec.structs import replace

from statemachines import checkpoint, facts
from statemachines.checkpoint import KEPT_MAX, Checkpoint, CheckpointState
from statemachines.lifecycle import IllegalTransition
from statemachines.values import JobId, Reach, Tier
from tests.statemachines.matrix import every_pair, pair_id

J: Final = JobId("j")
NOW: Final = 1_000
S: Final = CheckpointState
BASE: Final = Checkpoint(
    J, 100, 1, S.DURABLE, 10, 20, "file:///old", 5, Tier.LOCAL, Reach.NODE, 6, 7, "o", False, True, "n"
)  # fmt: skip
FACTS: Final[Mapping[type, Any]] = {
    type(fact): fact
    for fact in (
        facts.CheckpointStarted(J, 2, 100),
        facts.CheckpointSaved(
            J, 2, 100, "file:///c", 1, Tier.REMOTE, Reach.CELL, 2, 3, "m", True, False, ""
        ),
        facts.CheckpointFailed(J, 2, 100, "disk full"),
        facts.CheckpointReleased(J, 100),
        facts.CheckpointRemoved(J, 100),
        facts.CheckpointCondemned(J, 100, "bad shard"),
    )
}
SAVING: Final = Checkpoint(J, 100, 2, S.SAVING, NOW)
SAVED: Final = Checkpoint(
    J, 100, 2, S.DURABLE, NOW, NOW, "file:///c", 1, Tier.REMOTE, Reach.CELL, 2, 3, "m", True, False, ""
)  # fmt: skip
LEGAL: Final[Mapping[tuple[CheckpointState, type], Checkpoint]] = {
    (S.SAVING, facts.CheckpointStarted): SAVING,
    (S.SAVING, facts.CheckpointSaved): SAVED,
    (S.SAVING, facts.CheckpointFailed): replace(BASE, state=S.FAILED),
    (S.DURABLE, facts.CheckpointReleased): replace(BASE, state=S.RELEASED),
    (S.DURABLE, facts.CheckpointRemoved): replace(BASE, state=S.REMOVED),
    (S.DURABLE, facts.CheckpointCondemned): replace(BASE, state=S.CONDEMNED),
    (S.FAILED, facts.CheckpointStarted): SAVING,
    (S.FAILED, facts.CheckpointSaved): SAVED,
    (S.CONDEMNED, facts.CheckpointStarted): SAVING,
    (S.CONDEMNED, facts.CheckpointSaved): SAVED,
    (S.CONDEMNED, facts.CheckpointReleased): replace(BASE, state=S.RELEASED),
    (S.CONDEMNED, facts.CheckpointRemoved): replace(BASE, state=S.REMOVED),
    (S.RELEASED, facts.CheckpointStarted): SAVING,
    (S.RELEASED, facts.CheckpointSaved): SAVED,
    (S.RELEASED, facts.CheckpointRemoved): replace(BASE, state=S.REMOVED),
    (S.REMOVED, facts.CheckpointStarted): SAVING,
    (S.REMOVED, facts.CheckpointSaved): SAVED,
}


def test_every_fact_about_a_checkpoint_has_an_example_here() -> None:
    assert set(FACTS) == set(get_args(facts.CheckpointFact))


@pytest.mark.parametrize(("state", "kind"), every_pair(S, facts.CheckpointFact), ids=pair_id)
def test_each_pair_gives_the_whole_value_or_is_illegal(state: CheckpointState, kind: type) -> None:
    before = replace(BASE, state=state)
    expected = LEGAL.get((state, kind))
    if expected is None:
        with pytest.raises(IllegalTransition, match=f"is {state}: {kind.__name__} is not legal"):
            checkpoint.advance(before, FACTS[kind], NOW)
        return
    after = checkpoint.advance(before, FACTS[kind], NOW)
    assert after == expected
    assert after.state is checkpoint.LIFECYCLE[(state, kind)]


def test_a_save_that_was_seen_to_begin_keeps_its_beginning() -> None:
    begun = checkpoint.begin(FACTS[facts.CheckpointStarted], 10)
    assert begun == replace(SAVING, started_at_ms=10)
    saved = checkpoint.advance(begun, FACTS[facts.CheckpointSaved], NOW)
    assert saved == replace(SAVED, started_at_ms=10)


def at(step: int, state: CheckpointState) -> Checkpoint:
    return Checkpoint(J, step, 1, state, 0)


def test_those_kept_are_sorted_and_of_one_step_there_is_one() -> None:
    kept: tuple[Checkpoint, ...] = ()
    for step in (20, 10, 30, 10):
        kept = checkpoint.keep(kept, at(step, S.DURABLE))
    assert kept == (at(10, S.DURABLE), at(20, S.DURABLE), at(30, S.DURABLE))


@pytest.mark.parametrize(
    ("older", "newer", "stays"),
    [
        (S.SAVING, S.SAVING, True),
        (S.SAVING, S.DURABLE, False),
        (S.FAILED, S.SAVING, False),
        (S.REMOVED, S.DURABLE, False),
        (S.DURABLE, S.DURABLE, True),
        (S.RELEASED, S.DURABLE, True),
        (S.CONDEMNED, S.DURABLE, True),
    ],
)
def test_an_older_one_makes_room_when_nothing_can_come_of_it(
    older: CheckpointState, newer: CheckpointState, stays: bool
) -> None:
    kept = checkpoint.keep((at(10, older),), at(20, newer))
    assert kept == ((at(10, older), at(20, newer)) if stays else (at(20, newer),))


def test_a_newer_one_stays_whatever_happens_to_an_older() -> None:
    newer = at(20, S.REMOVED)
    assert checkpoint.keep((newer,), at(10, S.DURABLE)) == (at(10, S.DURABLE), newer)


def test_a_job_that_reports_no_removal_is_held_to_a_bound() -> None:
    kept: tuple[Checkpoint, ...] = (at(0, S.DURABLE),)
    for step in range(1, KEPT_MAX + 10):
        kept = checkpoint.keep(kept, at(step, S.RELEASED))
    steps = [each.step for each in kept]
    assert steps == [0, *range(11, KEPT_MAX + 10)]


def test_restart_points_are_never_dropped_for_room() -> None:
    kept: tuple[Checkpoint, ...] = ()
    for step in range(KEPT_MAX + 5):
        kept = checkpoint.keep(kept, at(step, S.DURABLE))
    assert [each.step for each in kept] == list(range(KEPT_MAX + 5))
