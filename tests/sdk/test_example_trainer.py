"""The example trainer: two real processes over sockets; killed and resumed, it ends with the same weights to the bit."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidemill.training import checkpoint

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 120


@pytest.fixture(params=["train_numpy.py", "train_torch.py"])
def trainer(request: pytest.FixtureRequest) -> Path:
    if request.param == "train_torch.py" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    return EXAMPLES / str(request.param)


def gang(
    trainer: Path, root: Path, *, delay_s: float = 0.0, world_size: int = 2
) -> list[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [
        sys.executable, str(trainer), "--steps", str(STEPS), "--save-every", "10", "--step-delay", str(delay_s),
        "--directory", str(root / "ck"), "--result", str(root / "result.json"),
    ]  # fmt: skip
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            arguments, env=os.environ | shared | {"RANK": str(rank)}, stdout=subprocess.DEVNULL
        )
        for rank in range(world_size)
    ]


def finish(processes: list[subprocess.Popen[bytes]], root: Path) -> dict[str, object]:
    assert [process.wait(timeout=100) for process in processes] == [0] * len(processes)
    result = json.loads((root / "result.json").read_text())
    assert isinstance(result, dict)
    return result


@pytest.mark.timeout(300)
def test_killed_and_resumed_training_ends_with_the_weights_of_an_uninterrupted_run(
    trainer: Path, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole = finish(gang(trainer, tmp_path / "whole"), tmp_path / "whole")

    first = gang(trainer, tmp_path / "killed", delay_s=0.02)
    ends = time.monotonic() + 60
    while not step_saved(tmp_path / "killed", at_least=30):
        assert time.monotonic() < ends, "no checkpoint within 60 s"
        assert first[0].poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    first[1].kill()
    # The other rank finds its peer gone and fails by itself: this attempt is over.
    assert first[1].wait(timeout=60) == -9
    assert first[0].wait(timeout=60) != 0

    resumed = finish(gang(trainer, tmp_path / "killed"), tmp_path / "killed")
    assert 30 <= int(str(resumed["began_at"])) < STEPS
    assert (whole["began_at"], resumed["weights_sha256"]) == (0, whole["weights_sha256"])


def step_saved(root: Path, *, at_least: int) -> bool:
    found = checkpoint.newest(root / "ck")
    return found is not None and found.step >= at_least
