"""Alive without progress, on virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.health.messages import AttemptGone, JobHung, NodeGone
from services.health.progress import RANKS_PER_MEMBER
from tests.services.health.bed import STEP_MS, TICK_MS, Bed

HANG_MS = 60_000


def steps(job: str, every_ms: int, ranks: int = 1) -> Callable[[Bed], None]:
    """Every rank makes a step now and then."""
    done = {"step": 0}

    def go_on(bed: Bed) -> None:
        if bed.now_ms % every_ms < STEP_MS:
            done["step"] += 1
            for rank in range(ranks):
                bed.step(job, done["step"], rank)

    return go_on


def test_a_job_that_makes_steps_is_never_hung() -> None:
    bed = Bed(2)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.also.append(steps("j", 20_000))
    bed.run(600_000)
    assert bed.said == []


def test_a_job_that_stops_making_steps_is_hung_after_its_own_time() -> None:
    bed = Bed(2)
    bed.start("j", on=("n0", "n1"), hang_after_ms=HANG_MS)
    bed.also.append(steps("j", 5_000, ranks=2))
    bed.run(100_000)
    bed.also.clear()
    bed.run(80_000)
    (hung,) = bed.of(JobHung)
    assert (hung.job, hung.attempt, hung.step, hung.rank) == ("j", 1, 20, 0)
    assert HANG_MS <= hung.silent_ms <= HANG_MS + 2 * TICK_MS + 2_000
    assert bed.kinds() == ["JobHung"]


def test_a_job_that_never_makes_a_step_is_hung_too() -> None:
    bed = Bed(2)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.run(55_000)
    assert bed.said == []
    bed.run(10_000)
    (hung,) = bed.of(JobHung)
    assert (hung.step, hung.rank) == (-1, 0)


def test_the_first_rank_to_fall_silent_is_named() -> None:
    bed = Bed(2)
    bed.start("j", on=("n0", "n1"), hang_after_ms=HANG_MS)
    for step in range(1, 4):
        bed.step("j", step, rank=0)
        bed.step("j", step, rank=1)
        bed.step("j", step, rank=2)
        bed.run(5_000)
    bed.step("j", 4, rank=0)
    bed.step("j", 4, rank=2)
    bed.run(70_000)
    (hung,) = bed.of(JobHung)
    assert (hung.step, hung.rank) == (4, 1)


def test_of_ranks_that_fell_silent_together_the_one_behind_is_named() -> None:
    bed = Bed(1)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.step("j", 9, rank=0)
    bed.step("j", 8, rank=3)
    bed.step("j", 8, rank=2)
    bed.run(70_000)
    assert [hung.rank for hung in bed.of(JobHung)] == [2]


def test_the_same_step_again_is_no_progress_and_another_phase_is() -> None:
    bed = Bed(1)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.also.append(lambda bed: bed.step("j", 5))
    bed.run(50_000)
    bed.also.clear()
    bed.step("j", 5, phase="eval")
    bed.run(50_000)
    assert bed.said == []
    bed.also.append(lambda bed: bed.step("j", 4, phase="eval"))
    bed.run(20_000)
    (hung,) = bed.of(JobHung)
    assert hung.step == 5


def test_a_job_that_did_not_ask_is_never_hung() -> None:
    bed = Bed(1)
    bed.start("j")
    bed.run(3_600_000)
    assert bed.said == []


def test_it_is_said_again_until_the_log_shows_it() -> None:
    bed = Bed(1, leader=False)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.run(70_000)
    assert len(bed.of(JobHung)) >= 3
    bed.detector.observe(AttemptGone("j"), bed.now_ms)
    bed.said.clear()
    bed.run(70_000)
    assert bed.said == []


def test_a_job_that_goes_on_after_it_was_called_hung_is_left_alone() -> None:
    bed = Bed(1, leader=False)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.run(70_000)
    assert bed.of(JobHung)
    bed.also.append(steps("j", 5_000))
    bed.run(10_000)
    bed.said.clear()
    bed.run(200_000)
    assert bed.said == []


def test_the_next_attempt_begins_with_all_of_its_time() -> None:
    bed = Bed(1)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.step("j", 5)
    bed.run(50_000)
    bed.start("j", hang_after_ms=HANG_MS, attempt=2)
    bed.step("j", 9, attempt=1)  # Late, of the one before.
    bed.run(55_000)
    assert bed.said == []
    bed.run(10_000)
    (hung,) = bed.of(JobHung)
    assert (hung.attempt, hung.step) == (2, -1)


def test_progress_of_a_job_that_does_not_run_says_nothing() -> None:
    bed = Bed(1)
    bed.step("j", 5)
    bed.run(10_000)
    assert bed.detector.progress.watched == 0
    assert bed.said == []


def test_the_log_saying_again_that_it_runs_gives_no_more_time() -> None:
    bed = Bed(1)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.run(50_000)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.run(15_000)
    assert bed.kinds() == ["JobHung"]


@pytest.mark.parametrize("trouble", ["path", "looking"])
def test_our_own_trouble_hangs_no_job(trouble: str) -> None:
    bed = Bed(2)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.also.append(lambda bed: steps_now(bed) if getattr(bed, trouble) else None)
    bed.run(30_000)
    setattr(bed, trouble, False)
    bed.run(300_000)
    setattr(bed, trouble, True)
    bed.run(100_000)
    assert bed.said == []


def steps_now(bed: Bed) -> None:
    if bed.now_ms % 20_000 < STEP_MS:
        bed.step("j", bed.now_ms // 1000)


def test_a_restarted_processor_gives_every_job_all_of_its_time() -> None:
    bed = Bed(1)
    bed.start("j", hang_after_ms=HANG_MS)
    bed.run(50_000)
    bed.recover()
    bed.run(58_000)
    assert bed.said == []
    bed.run(10_000)
    assert bed.kinds() == ["JobHung"]


def test_during_an_incident_nothing_is_hung_and_afterwards_time_starts_anew() -> None:
    bed = Bed(20)
    bed.start("j", on=("n0",), hang_after_ms=HANG_MS)
    bed.run(30_000)
    bed.mute([f"n{i}" for i in range(5)], 100_000)
    bed.run(125_000)
    assert bed.incident == ""
    assert bed.of(JobHung) == []
    bed.run(30_000)  # Longer than its own time since the last step.
    assert bed.of(JobHung) == []
    bed.run(30_000)
    assert len(bed.of(JobHung)) == 1
    assert bed.of(NodeGone) == []


def test_ranks_that_nobody_heard_of_before_are_no_progress() -> None:
    """A program that hangs could give itself another number for ever."""
    bed = Bed(1)
    bed.start("j", hang_after_ms=60_000)
    bed.step("j", 7)
    ranks = iter(range(1, RANKS_PER_MEMBER))
    bed.also.append(lambda bed: bed.step("j", 7, rank=next(ranks, 0)))
    bed.run(70_000)
    assert bed.kinds() == ["JobHung"]


def test_a_rank_that_is_first_heard_of_further_on_is_progress() -> None:
    bed = Bed(1)
    bed.start("j", hang_after_ms=60_000)
    bed.step("j", 7)
    bed.run(50_000)
    bed.step("j", 8, rank=1)
    bed.run(50_000)
    assert bed.said == []


def test_a_number_that_no_member_can_have_is_not_kept() -> None:
    bed = Bed(1)
    bed.start("j", hang_after_ms=60_000)
    for rank in (RANKS_PER_MEMBER, 1 << 30, -1):
        bed.step("j", 7, rank=rank)
    bed.run(70_000)
    (hung,) = bed.of(JobHung)
    assert (hung.step, hung.rank) == (-1, 0)
