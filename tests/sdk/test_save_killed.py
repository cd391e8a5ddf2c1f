"""kill -9 in the middle of saves, and saves of several processes: what is there verifies, what does not is not there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidemill.training import checkpoint, verify
from tidemill.training.checkpoint import PARTIAL, step_directory

# Saves for ever; after each commit it says the step. Files hold the step, so that mixed shards would show.
SAVER = """
import sys
from tidemill.training import session
with session(sys.argv[1]) as s:
    for step in range(int(sys.argv[2]), 10**9):
        with s.save(step) as directory:
            for part in range(4):
                (directory / f"part-{part}").write_bytes(str(step).encode() * 20_000)
        print(step, flush=True)
"""
ROUNDS = 12


def saver(root: Path, first: int, rank: int = 0, world_size: int = 1) -> subprocess.Popen[str]:
    env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    arguments = [sys.executable, "-c", SAVER, str(root), str(first)]
    return subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> list[int]:
    """kill -9; the steps that it had still said."""
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate(timeout=60)
    return [int(line) for line in rest.split()]


def check_all(root: Path, world_size: int, acknowledged: list[int]) -> None:
    """Every named checkpoint verifies and holds its own step only; every acknowledged one is there."""
    there = set()
    for path in root.glob("step-*"):
        if PARTIAL in path.name:
            continue
        manifest = verify(path)
        there.add(manifest.step)
        assert path == step_directory(root, manifest.step)
        assert len(manifest.files) == 4 * world_size
        for file in manifest.files:
            assert (path / file["file"]).read_bytes() == str(manifest.step).encode() * 20_000
    assert set(acknowledged) <= there


@pytest.mark.timeout(300)
def test_a_kill_at_any_instant_leaves_whole_checkpoints_or_none(tmp_path: Path) -> None:
    chance = random.Random(11)
    first, acknowledged = 1, []
    for _ in range(ROUNDS):
        process = saver(tmp_path, first)
        acknowledged += [said(process), said(process)]
        time.sleep(
            chance.uniform(0.0, 0.03)
        )  # Where in a save the kill lands is what is being varied.
        acknowledged += kill(process)
        check_all(tmp_path, 1, acknowledged)
        found = checkpoint.newest(tmp_path)
        assert found is not None
        assert found.step >= acknowledged[-1]
        first = found.step + 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_kill_of_one_rank_of_three_never_commits_without_it(tmp_path: Path, victim: int) -> None:
    processes = [saver(tmp_path, 1, rank, 3) for rank in range(3)]
    acknowledged = [said(processes[0]) for _ in range(3)]
    kill(processes[victim])
    for rank, process in enumerate(processes):
        if rank != victim:
            kill(process)
    check_all(tmp_path, 3, acknowledged)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_save_together_without_any_channel_but_files(tmp_path: Path, world_size: int) -> None:
    processes = [saver(tmp_path, 1, rank, world_size) for rank in range(world_size)]
    acknowledged = [said(processes[0]) for _ in range(5)]
    for process in processes:
        kill(process)
    check_all(tmp_path, world_size, acknowledged)
    assert acknowledged == [1, 2, 3, 4, 5]
