"""Pages say what the code does: the command line's is generated, the job file's names every key, loops are run."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.gateway import TOKEN, FakeGateway
from tidemill import jobfile
from tools.cli_reference import page

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
LAST = 1_200


def test_the_page_of_the_command_line_is_fresh() -> None:
    assert (REFERENCE / "cli.md").read_text() == page(), (
        "python -m tools.cli_reference > docs/reference/cli.md"
    )


def test_every_key_of_a_job_and_a_queue_is_documented() -> None:
    text = (REFERENCE / "job-file.md").read_text()
    jobs, queues = text.split("## Queues")
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", jobs)) == set(jobfile.JOB.keys)
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", queues)) == set(jobfile.QUEUE.keys)


def test_the_examples_of_the_job_file_page_are_valid(tmp_path: Path) -> None:
    job, queues = re.findall(
        r"```yaml\n(.*?)```", (REFERENCE / "job-file.md").read_text(), re.DOTALL
    )
    assert jobfile.job_request(yaml.safe_load(job)).spec.queue == "research"
    (tmp_path / "q.yaml").write_text(queues)
    assert [queue.queue for queue in jobfile.read_queues(tmp_path / "q.yaml")] == [
        "research",
        "vision",
    ]


# ---------------------------------------------------------------- the training loop that a reader copies


class Crashed(Exception):
    """The program dies in the middle of a step."""


class Model:
    """Knows every step that it was trained on, across saves."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps

    def write(self, directory: Path) -> None:
        (directory / "model.json").write_text(json.dumps(self.steps))

    @classmethod
    def load(cls, directory: Path) -> Model:
        return cls(json.loads((directory / "model.json").read_text()))


def run_the_loop(path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """The page's first block of Python, as it stands, with the reader's own names beside it."""
    [block, *_] = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    names |= {"load": Model.load, "fresh": Model, "last": LAST}
    exec(compile(block, str(path), "exec"), names)
    return names


def trained(model: Model) -> float:
    model.steps += 1
    return 1 / model.steps


pages = pytest.mark.parametrize(
    "path", [ROOT / "README.md", REFERENCE / "training.md"], ids=lambda path: path.name
)


@pages
def test_the_loop_that_a_reader_copies_resumes_and_trains_every_step_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def dies(model: Model) -> float:
        if model.steps == LAST - 100:
            raise Crashed
        return trained(model)

    with pytest.raises(Crashed):
        run_the_loop(path, {"train": dies})
    resumed = run_the_loop(path, {"train": trained})
    assert resumed["checkpoint"].step in range(1, LAST - 100)
    assert (resumed["step"], resumed["model"].steps) == (LAST, LAST)


@pages
def test_the_loop_that_a_reader_copies_saves_and_stops_when_it_is_asked_to(
    path: Path, tmp_path: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ask = tmp_path / "ask"
    ask.write_text(json.dumps({"ask": 1, "at_step": 7, "stop_after_save": True}))
    for name, value in {
        "JOB": "job1", "ATTEMPT": "1", "GATEWAY": gateway.address, "TOKEN": TOKEN,
        "CHECKPOINT_DIR": str(tmp_path / "a1"), "ASK_FILE": str(ask),
    }.items():  # fmt: skip
        monkeypatch.setenv(f"TIDEMILL_{name}", value)

    names: dict[str, Any] = {}

    def trained_once_asked(model: Model) -> float:
        waiting = threading.Event()
        while not names["s"].stopping:
            waiting.wait(0.01)
        return trained(model)

    names["train"] = trained_once_asked
    run_the_loop(path, names)
    assert names["step"] == 7
    assert gateway.kinds() == ["resumed", "save_began", "saved"]
