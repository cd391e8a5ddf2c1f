"""Same seed, same history: in one process, and under two hash seeds."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from chaos import scenarios
from simulation.history import play
from simulation.world import World

pytestmark = pytest.mark.timeout(600)

SEED = 7
_CHILD = (
    "from chaos import scenarios; from simulation.history import play; "
    f"v = play(scenarios.load('anything'), {SEED}).verdict; print(v.history, v.state, v.entries)"
)


def _in_a_process(hash_seed: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", _CHILD],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_same_seed_gives_the_same_history() -> None:
    scenario = scenarios.load("anything")
    assert play(scenario, SEED).verdict == play(scenario, SEED).verdict


def test_another_seed_gives_another_history() -> None:
    scenario = scenarios.load("crash-loop")
    assert play(scenario, 1).verdict.history != play(scenario, 2).verdict.history


@pytest.mark.timeout(300)
def test_a_history_does_not_depend_on_the_hash_seed() -> None:
    assert _in_a_process("0") == _in_a_process("4242")


def test_no_world_outlives_its_history() -> None:
    verdict = play(scenarios.load("crash-loop"), 1).verdict
    assert verdict.entries > 0
    assert gc.get_freeze_count() == 0  # What is frozen is in no list of objects.
    assert [each for each in gc.get_objects() if isinstance(each, World)] == []
