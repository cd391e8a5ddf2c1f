"""Reference pages say what the code does: the command line's is generated, the job file's names every key."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tidemill import jobfile
from tools.cli_reference import page

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


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
