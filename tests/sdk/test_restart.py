"""Processes that a launcher starts again within an attempt: they go through saved steps once more and change nothing there."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.sdk.attempt import Cell
from tidemill.training import CheckpointError, Session, verify
from tidemill.training.checkpoint import remove

AGAIN = {"TORCHELASTIC_RESTART_COUNT": "1"}


def saved(s: Session, steps: Iterable[int], content: str, *, shared: bool = False) -> None:
    for step in steps:
        with s.save(step, shared=shared) as directory:
            (directory / f"of-{s.identity.rank}").write_text(content)


def folders(cell: Cell) -> list[str]:
    return sorted(path.name for path in (cell.root / "job1/a2").iterdir() if path.is_dir())


def step(number: int) -> str:
    return f"step-{number:012d}"


def test_a_restarted_process_gets_past_the_steps_that_its_attempt_has_saved(cell: Cell) -> None:
    with cell.session() as s:
        saved(s, (10, 20), "first")
    before = [verify(cell.root / "job1/a2" / step(number)) for number in (10, 20)]
    with cell.session(AGAIN) as s:
        saved(s, (10, 20, 30), "second")
    assert [verify(cell.root / "job1/a2" / step(number)) for number in (10, 20)] == before
    assert (cell.root / "job1/a2" / step(30) / "rank-00000/of-0").read_text() == "second"
    assert folders(cell) == [step(10), step(20), step(30)]


def test_of_what_is_there_already_the_cell_is_told_the_newest_and_no_new_save(cell: Cell) -> None:
    """The process may have died between the commit and its report: a report that repeats changes nothing."""
    with cell.session() as s:
        saved(s, (10, 20), "first")
    cell.gateway.reports.clear()
    with cell.session(AGAIN) as s:
        saved(s, (10, 30), "second")
    assert cell.gateway.kinds() == ["saved", "save_began", "saved"]
    repeated = cell.gateway.reports[0].saved
    newest = verify(cell.root / "job1/a2" / step(20))
    assert (repeated.step, repeated.attempt, repeated.uri) == (20, 2, newest.path.as_uri())
    assert (repeated.manifest, repeated.bytes) == (newest.digest, newest.bytes)


def test_a_released_step_that_is_gone_is_not_saved_again_below_the_newest(cell: Cell) -> None:
    """Nobody would ever remove it: the cell has done with that step."""
    with cell.session() as s:
        saved(s, (10, 20), "first")
    assert remove(cell.root / "job1/a2" / step(10))
    with cell.session(AGAIN) as s:
        saved(s, (5, 10), "second")
    assert folders(cell) == [step(20)]


@pytest.mark.parametrize("shared", [False, True])
def test_all_ranks_of_a_restarted_gang_pass_alike_and_leave_nothing(
    cell: Cell, shared: bool
) -> None:
    def gang(env: dict[str, str], content: str) -> None:
        ranks = [
            cell.session({"RANK": str(rank), "WORLD_SIZE": "2", "TIDEMILL_GATEWAY": ""} | env)
            for rank in (0, 1)
        ]
        threads = [
            threading.Thread(target=saved, args=(s, (10,), content), kwargs={"shared": shared})
            for s in ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads)

    gang({}, "first")
    before = verify(cell.root / "job1/a2" / step(10))
    gang(AGAIN, "second")
    assert verify(cell.root / "job1/a2" / step(10)) == before
    assert folders(cell) == [step(10)]


def test_what_the_block_raises_at_a_passed_step_is_a_failed_save_and_the_checkpoint_stays(
    cell: Cell,
) -> None:
    with cell.session() as s:
        saved(s, (10,), "first")
    with cell.session(AGAIN) as s:
        with pytest.raises(ZeroDivisionError), s.save(10):
            _ = 1 / 0
        saved(s, (20, 30), "second")
    assert cell.gateway.kinds()[2:4] == ["save_failed", "save_began"]
    assert verify(cell.root / "job1/a2" / step(10)).step == 10
    assert folders(cell) == [step(10), step(20), step(30)]


def test_one_process_saves_a_step_once(cell: Cell) -> None:
    with cell.session() as s:
        saved(s, (10,), "first")
        with pytest.raises(CheckpointError, match="save each step once"):
            saved(s, (10,), "second")


@pytest.mark.parametrize("other", [{"TIDEMILL_ATTEMPT": "1"}, {"TIDEMILL_JOB": "job0"}])
def test_the_checkpoint_of_another_attempt_is_never_taken_for_its_own(
    cell: Cell, other: dict[str, str]
) -> None:
    with cell.session(other) as s:
        saved(s, (10,), "theirs")
    with cell.session() as s:
        with pytest.raises(CheckpointError, match="committed already"):
            saved(s, (10,), "ours")
        saved(s, (5,), "ours")
    assert (cell.root / "job1/a2" / step(10) / "rank-00000/of-0").read_text() == "theirs"
    assert folders(cell) == [step(5), step(10)]


def test_outside_a_cell_a_training_that_begins_anew_is_not_dropped_unsaid(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = {"TIDEMILL_JOB": "", "TIDEMILL_GATEWAY": ""}
    with cell.session(plain) as s:
        saved(s, (10,), "first")
    with cell.session(plain) as s, pytest.raises(CheckpointError, match="committed already"):
        saved(s, (10,), "second")
    assert (tmp_path / "checkpoints" / step(10) / "rank-00000/of-0").read_text() == "first"
