"""Golden logs fold to the recorded state, under any hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statemachines.cluster import FOLD_VERSION
from tests.statemachines import golden
from tests.statemachines.tour import tour


def folded(path: Path, hash_seed: str) -> dict[str, Any]:
    """Fold it in a process of its own."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.statemachines.golden", "fold", str(path)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=golden.FOLDER.parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(told.stdout)
    return answer


def test_every_log_that_is_declared_is_stored() -> None:
    assert {path.stem for path in golden.FOLDER.glob("*.bin")} == set(golden.LOGS)


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
@pytest.mark.parametrize("name", list(golden.LOGS))
def test_a_golden_log_folds_to_the_recorded_state(name: str, hash_seed: str) -> None:
    told = json.loads((golden.FOLDER / f"{name}.json").read_text())
    now = str(FOLD_VERSION)
    told["state_digest"] = {now: told["state_digest"][now]}
    assert folded(golden.FOLDER / f"{name}.bin", hash_seed) == told


def test_a_log_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    stored = tour().stored
    golden.write(tmp_path / "log.bin", stored)
    assert golden.read(tmp_path / "log.bin") == stored
