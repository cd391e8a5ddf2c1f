"""A session against a real gRPC server: what it says, when the gateway is away, slow or flapping, and outside a cell."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import timeit
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.gateway import Fault
from tests.sdk.attempt import Cell, until
from tidemill.training import CheckpointError, session
from tidemill.training.environment import read_identity
from tidemill.v1 import common_pb2 as common_pb
from tidemill.v1 import training_service_pb2 as training_pb


def test_a_save_is_reported_with_its_manifest_when_it_is_durable(cell: Cell) -> None:
    with cell.session() as s:
        s.step(10, loss=0.5)
        with s.save(10, data_state=True) as directory:
            (directory / "weights").write_bytes(b"w" * 64)
        manifest = s.verify(cell.root / "job1/a2/step-000000000010")
    assert cell.gateway.kinds() == ["save_began", "saved"]
    saved = cell.gateway.reports[1].saved
    assert (saved.job, saved.attempt, saved.step, saved.bytes, saved.node) == (
        "job1",
        2,
        10,
        64,
        "n1",
    )
    assert saved.uri == manifest.path.as_uri()
    assert (saved.manifest, saved.data_state) == (manifest.digest, True)
    assert (saved.reach, saved.tier) == (common_pb.REACH_CELL, common_pb.TIER_REMOTE)
    assert cell.gateway.reports[1].principal.name == "job:job1"
    assert list((cell.root / "spool/rank-0").iterdir()) == []


def test_progress_comes_by_itself_with_metrics(cell: Cell) -> None:
    with cell.session() as s:
        s.phase("train")
        s.step(1, loss=0.25)
        until(cell.gateway, lambda: any(record.step == 1 for record in cell.gateway.progress))
    record = next(record for record in cell.gateway.progress if record.step == 1)
    assert (record.job, record.attempt, record.rank, record.phase) == ("job1", 2, 0, "train")
    assert record.metrics["loss"] == 0.25


def test_what_a_rank_waits_for_others_is_not_its_own_work(cell: Cell) -> None:
    """Each step waits until it was told of, which takes a while; the best of them shows what the rank did itself."""

    def told(step: int) -> bool:
        return any(record.step == step for record in cell.gateway.progress)

    with cell.session() as s:
        s.phase("train")
        for step in range(1, 8):
            s.step(step)
            with s.waiting():
                until(cell.gateway, partial(told, step))
    busy_us = [record.busy_us for record in cell.gateway.progress if record.busy_us]
    assert len(busy_us) >= 4
    assert 2 * min(busy_us) < cell.gateway.progress[-1].step_us


def test_what_is_no_number_is_left_out_of_the_metrics(cell: Cell) -> None:
    with cell.session() as s:
        s.step(1, loss=1, name="text", none=None, grad=float("nan"), scale=float("-inf"))  # type: ignore[arg-type]
        until(cell.gateway, lambda: any(record.step == 1 for record in cell.gateway.progress))
    assert [dict(record.metrics) for record in cell.gateway.progress if record.step == 1] == [
        {"loss": 1.0}
    ]


def test_a_gateway_that_is_away_stops_nothing_and_loses_no_report(cell: Cell) -> None:
    cell.gateway.stop()
    s = cell.session()
    for step in range(1, 4):
        s.step(step)
        with s.save(step) as directory:
            (directory / "w").write_text(str(step))
    assert len(list((cell.root / "spool/rank-0").iterdir())) == 6
    cell.gateway.start()
    s.close()
    assert cell.gateway.kinds() == ["save_began", "saved"] * 3
    assert [report.saved.step for report in cell.gateway.reports[1::2]] == [1, 2, 3]


def test_reports_of_a_process_that_ended_without_a_gateway_are_sent_by_the_next_one(
    cell: Cell,
) -> None:
    cell.gateway.stop()
    with cell.session(drain_s=0.1) as s, s.save(5) as directory:
        (directory / "w").write_text("w")
    assert len(list((cell.root / "spool/rank-0").iterdir())) == 2
    cell.gateway.start()
    with cell.session() as s:
        s.finished(9)
    assert cell.gateway.kinds() == ["save_began", "saved", "finished"]


def test_a_slow_gateway_does_not_slow_the_loop(cell: Cell) -> None:
    cell.gateway.answering.clear()
    s = cell.session()
    for step in range(1, 1001):
        s.step(step)
    with s.save(1000) as directory:
        (directory / "w").write_text("w")
    assert cell.gateway.kinds() == []
    cell.gateway.answering.set()
    s.close()
    assert cell.gateway.kinds() == ["save_began", "saved"]


def test_a_flapping_gateway_gets_every_report_in_order(cell: Cell) -> None:
    cell.gateway.fail("ReportCheckpoint", *[Fault("UNAVAILABLE", "flap")] * 3)
    cell.gateway.fail("ReportProgress", *[Fault("INTERNAL", "flap")] * 2)
    with cell.session() as s:
        for step in (1, 2):
            with s.save(step) as directory:
                (directory / "w").write_text("w")
    assert cell.gateway.kinds() == ["save_began", "saved", "save_began", "saved"]


def test_a_report_that_the_cell_refuses_for_good_is_dropped_and_training_goes_on(
    cell: Cell,
) -> None:
    cell.gateway.fail(
        "ReportCheckpoint", Fault("FAILED_PRECONDITION", "attempt is over", reason="attempt_over")
    )
    with cell.session() as s:
        with s.save(1) as directory:
            (directory / "w").write_text("w")
        s.finished(1)
    assert cell.gateway.kinds() == ["saved", "finished"]
    assert list((cell.root / "spool/rank-0").iterdir()) == []


def test_a_full_or_missing_spool_keeps_reports_in_memory(cell: Cell) -> None:
    (cell.root / "blocked").write_text("a file, so no directory can be made below it")
    with cell.session({"TIDEMILL_SPOOL_DIR": str(cell.root / "blocked")}) as s:
        s.finished(3)
    assert cell.gateway.kinds() == ["finished"]


# ---------------------------------------------------------------- saves that fail


def test_what_the_block_raises_is_reported_and_raised(cell: Cell) -> None:
    with cell.session() as s:
        with pytest.raises(ZeroDivisionError), s.save(1):
            _ = 1 / 0
        with s.save(2) as directory:
            (directory / "w").write_text("w")
    assert cell.gateway.kinds() == ["save_began", "save_failed", "save_began", "saved"]
    assert cell.gateway.reports[1].save_failed.message == "ZeroDivisionError: division by zero"


def test_a_directory_that_cannot_be_made_is_a_failed_save(cell: Cell) -> None:
    (cell.root / "job1").write_text("a file where a directory should be")
    with cell.session() as s, pytest.raises(OSError, match="Not a directory"), s.save(1):
        pass
    assert cell.gateway.kinds() == ["save_began", "save_failed"]


def test_a_save_in_parts_may_end_in_another_thread_and_ends_once(cell: Cell) -> None:
    with cell.session() as s:
        (s.save_started(1) / "w").write_text("w")
        ending = threading.Thread(target=s.saved, args=(1,))
        ending.start()
        ending.join()
        with pytest.raises(CheckpointError, match="save_started was not called"):
            s.saved(1)
    assert cell.gateway.kinds() == ["save_began", "saved"]


def test_a_commit_that_fails_is_reported_and_training_goes_on(cell: Cell) -> None:
    with cell.session({"WORLD_SIZE": "2"}) as s, s.save(1, commit_timeout_s=0.05) as directory:
        (directory / "w").write_text("w")
    assert cell.gateway.kinds() == ["save_began", "save_failed"]
    assert "no shard of rank 1" in cell.gateway.reports[1].save_failed.message


def test_other_ranks_write_their_shard_and_report_only_failures(cell: Cell) -> None:
    with cell.session({"RANK": "1", "WORLD_SIZE": "2"}) as s:
        with s.save(1) as directory:
            (directory / "w").write_text("w")
        s.finished(1)
        s.save_failed(2, "disk full")
    assert cell.gateway.kinds() == ["save_failed"]


# ---------------------------------------------------------------- resume


def resumable(cell: Cell, step: int = 7) -> dict[str, str]:
    """A checkpoint of attempt 1, and the variables by which attempt 2 is told to start from it."""
    first = {"TIDEMILL_ATTEMPT": "1", "TIDEMILL_CHECKPOINT_DIR": str(cell.root / "job1" / "a1")}
    with cell.session(first) as s:
        with s.save(step) as directory:
            (directory / "w").write_text("weights")
        manifest = s.verify(cell.root / f"job1/a1/step-{step:012d}")
    cell.gateway.reports.clear()
    return {
        "TIDEMILL_RESUME_STEP": str(step),
        "TIDEMILL_RESUME_URI": manifest.path.as_uri(),
        "TIDEMILL_RESUME_MANIFEST": manifest.digest,
    }


def test_a_load_is_followed_by_its_receipt(cell: Cell) -> None:
    told = resumable(cell)
    with cell.session(told) as s, s.load() as found:
        assert found is not None
        assert (found.step, (found.rank_directory(0) / "w").read_text()) == (7, "weights")
    (report,) = cell.gateway.reports
    receipt = report.resumed
    assert (receipt.attempt, receipt.step, receipt.uri, receipt.manifest) == (
        2, 7, told["TIDEMILL_RESUME_URI"], told["TIDEMILL_RESUME_MANIFEST"],
    )  # fmt: skip


def test_a_start_from_the_beginning_has_a_receipt_too(cell: Cell) -> None:
    with cell.session() as s, s.load() as found:
        assert found is None
        assert not s.resume_point()
    assert [(report.resumed.step, report.resumed.uri) for report in cell.gateway.reports] == [
        (0, "")
    ]


def test_a_damaged_checkpoint_is_reported_before_anything_is_loaded(cell: Cell) -> None:
    told = resumable(cell)
    (cell.root / "job1/a1/step-000000000007/rank-00000/w").write_text("WEIGHTS")
    entered = False
    with (
        cell.session(told) as s,
        pytest.raises(CheckpointError, match="SHA-256"),
        s.load(wait_s=0),
    ):
        entered = True
    assert (entered, cell.gateway.kinds()) == (False, ["load_failed"])
    assert cell.gateway.reports[0].load_failed.step == 7


def test_a_checkpoint_that_is_not_there_says_what_may_be_wrong(cell: Cell) -> None:
    told = {
        "TIDEMILL_RESUME_STEP": "7",
        "TIDEMILL_RESUME_URI": "file:///nowhere/a1/step-000000000007",
    }
    with (
        cell.session(told) as s,
        pytest.raises(CheckpointError, match="shared between nodes"),
        s.load(wait_s=0),
    ):
        pass
    assert cell.gateway.kinds() == ["load_failed"]


def test_what_the_loader_raises_is_a_failed_load_unless_memory_ran_out(cell: Cell) -> None:
    told = resumable(cell)
    with cell.session(told) as s, pytest.raises(KeyError), s.load():
        raise KeyError("weights")
    assert cell.gateway.kinds() == ["load_failed"]
    with cell.session(told) as s, pytest.raises(MemoryError), s.load():
        raise MemoryError
    assert cell.gateway.kinds() == ["load_failed"]


def test_a_rank_that_loaded_another_step_than_decided_says_so(cell: Cell) -> None:
    told = resumable(cell)
    with cell.session({"RANK": "1", "WORLD_SIZE": "2"} | told) as s:
        s.resumed(7)
        s.resumed(5)
    assert [(report.resumed.step, report.resumed.uri) for report in cell.gateway.reports] == [
        (5, "")
    ]


def test_a_step_at_or_below_the_start_is_not_saved_again(cell: Cell) -> None:
    with cell.session(resumable(cell)) as s:
        with s.load():
            pass
        with pytest.raises(CheckpointError, match="not above 7"), s.save(7):
            pass


# ---------------------------------------------------------------- asks


def test_an_early_save_goes_from_ask_to_answer_to_save_to_stop(cell: Cell) -> None:
    with cell.session() as s:
        step = 0
        cell.ask(1, 0, stop=False)
        until(cell.gateway, lambda: "save_answered" in cell.gateway.kinds())
        agreed = cell.gateway.reports[0].save_answered.at_step
        cell.ask(1, agreed, stop=True)
        spins = threading.Event()
        while not s.stopping:
            spins.wait(0.01)
        saved_at = []
        while not s.should_stop(step):
            step += 1
            s.step(step)
            if s.should_save_now(step):
                saved_at.append(step)
                with s.save(step) as directory:
                    (directory / "w").write_text("w")
            assert step <= agreed
        assert (saved_at, step) == ([agreed], agreed)
    assert cell.gateway.kinds() == ["save_answered", "save_began", "saved"]


def test_a_periodic_save_at_or_above_the_agreed_step_lets_training_stop_too(cell: Cell) -> None:
    with cell.session() as s:
        cell.ask(1, 5, stop=True)
        waiting = threading.Event()
        while not s.stopping:
            waiting.wait(0.01)
        s.step(8)
        assert not s.should_stop(8)
        with s.save(8) as directory:
            (directory / "w").write_text("w")
        assert s.should_stop(8)


def test_a_torn_or_foreign_ask_file_changes_nothing(cell: Cell) -> None:
    cell.ask_file.write_text('{"ask": 1, "at_')
    with cell.session() as s:
        s.step(1)
        until(cell.gateway, lambda: bool(cell.gateway.progress))
        assert not s.stopping
        assert not s.should_save_now(1)


# ---------------------------------------------------------------- retention and advice


def test_only_steps_that_the_registry_released_are_removed_of_this_and_earlier_attempts(
    cell: Cell,
) -> None:
    resumable(cell, step=3)
    cell.gateway.advice = training_pb.GetAdviceResponse(interval_ms=90_000)
    with cell.session() as s:
        for step in (10, 20, 30):
            with s.save(step) as directory:
                (directory / "w").write_text("w")
        cell.gateway.advice = training_pb.GetAdviceResponse(
            interval_ms=90_000, released_steps=[3, 10], durable_step=30
        )
        until(cell.gateway, lambda: cell.gateway.kinds().count("removed") == 2)
        assert s.advised_interval == 90.0
    assert [
        report.removed.step for report in cell.gateway.reports if report.HasField("removed")
    ] == [3, 10]
    kept = sorted(
        str(path.relative_to(cell.root / "job1")) for path in cell.root.glob("job1/a*/step-*")
    )
    assert kept == ["a2/step-000000000020", "a2/step-000000000030"]


def test_an_attempt_never_touches_those_after_it(cell: Cell) -> None:
    later = cell.root / "job1/a3/step-000000000010"
    later.mkdir(parents=True)
    cell.gateway.advice = training_pb.GetAdviceResponse(released_steps=[10])
    with cell.session() as s:
        with s.save(10) as directory:
            (directory / "w").write_text("w")
        until(cell.gateway, lambda: "removed" in cell.gateway.kinds())
    assert later.is_dir()


# ---------------------------------------------------------------- outside a cell


def test_outside_a_cell_everything_works_on_a_plain_directory(tmp_path: Path) -> None:
    with session(tmp_path / "ck", env={}) as s:
        with s.load() as found:
            assert found is None
        s.step(1, loss=1.0)
        with s.save(1) as directory:
            (directory / "w").write_text("w")
        assert not s.should_save_now(1)
        assert not s.should_stop(1)
        assert s.advised_interval == 0.0
        s.finished(1)
    with session(tmp_path / "ck", env={}) as s, s.load() as found:
        assert found is not None
        assert found.step == 1


def test_a_forked_child_speaks_for_nobody(cell: Cell) -> None:
    program = (
        "import os\n"
        "from tidemill.training import session\n"
        "with session() as s:\n"
        "    s.finished(1)\n"
        "    if not (child := os.fork()):\n"
        "        s.finished(2)\n"
        "        s.close()\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    s.finished(3)\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], env=os.environ | cell.env, check=True, timeout=60
    )
    assert [report.finished.step for report in cell.gateway.reports] == [1, 3]


def test_a_process_that_forgets_to_close_still_sends_what_it_owes(cell: Cell) -> None:
    program = "from tidemill.training import session; s = session(); s.finished(4)"
    subprocess.run(
        [sys.executable, "-c", program], env=os.environ | cell.env, check=True, timeout=60
    )
    assert cell.gateway.kinds() == ["finished"]


def test_importing_the_session_loads_neither_grpc_nor_numpy_nor_a_framework() -> None:
    program = (
        "import sys, tidemill.training\n"
        "heavy = {'grpc', 'numpy', 'torch', 'jax', 'typer', 'rich', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_broken_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="TIDEMILL_ATTEMPT='x' is not an integer"):
        session(tmp_path, env={"TIDEMILL_JOB": "j", "TIDEMILL_ATTEMPT": "x"})


def test_an_unknown_reach_is_named_at_the_start_and_not_after_the_first_save(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        ValueError,
        match="TIDEMILL_CHECKPOINT_REACH='moon' is none of node, domain, cell, everywhere",
    ):
        session(tmp_path, env={"TIDEMILL_JOB": "j", "TIDEMILL_CHECKPOINT_REACH": "moon"})


def test_a_checkpoint_on_no_file_system_is_not_condemned(cell: Cell) -> None:
    told = {"TIDEMILL_RESUME_STEP": "7", "TIDEMILL_RESUME_URI": "s3://bucket/step-7"}
    with cell.session(told) as s:
        with pytest.raises(ValueError, match="load it with your framework"), s.load():
            pass
        s.resumed(7)
    assert cell.gateway.kinds() == ["resumed"]


def test_a_step_costs_less_than_two_microseconds(tmp_path: Path) -> None:
    """The best of many batches: what the call costs, whatever else this machine does."""
    with session(tmp_path, env={}) as s:
        best = min(timeit.repeat(lambda: s.step(5, loss=0.5), number=2_000, repeat=30)) / 2_000
        asked = min(timeit.repeat(lambda: s.should_save_now(5), number=2_000, repeat=30)) / 2_000
    assert (best < 2e-6, asked < 2e-6) == (True, True), (best, asked)


@pytest.mark.parametrize(
    ("env", "said", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "TIDEMILL_RANK": "3"}, {}, (3, 4)),
        # torchrun inside a member: its workers have ranks of their own.
        ({"RANK": "5", "WORLD_SIZE": "8", "TIDEMILL_RANK": "0"}, {}, (5, 8)),
        ({"TIDEMILL_RANK": "1", "WORLD_SIZE": "2"}, {}, (1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, {"rank": 2, "world_size": 3}, (2, 3)),
        ({}, {}, (0, 1)),
    ],
    ids=["agent", "torchrun", "no launcher", "said", "alone"],
)
def test_the_nearest_word_on_the_rank_counts(
    env: dict[str, str], said: dict[str, int], expected: tuple[int, int]
) -> None:
    me = read_identity(env, **said)  # type: ignore[arg-type]
    assert (me.rank, me.world_size) == expected


def test_a_rank_outside_the_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rank 2 is not below the world size 2"):
        session(tmp_path, rank=2, world_size=2, env={})
