"""The command: a failing seed names its fewest faults and what replays it; a rare state that was never reached fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chaos.__main__ import main

pytestmark = pytest.mark.timeout(600)


def test_a_failing_seed_is_made_small_and_says_what_replays_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--seeds", "1", "--processes", "1", "--bug", "old-checkpoint"]
    page, result = tmp_path / "history.html", tmp_path / "result.json"
    files = ["--report", str(page), "--json", str(result)]
    assert main(["sim", "partition", *arguments, *files]) == 1
    said = capsys.readouterr().out
    assert "seed 1 of partition:\n  E: " in said
    assert re.search(r"fewest faults that break it \(3 at first\):\n.* partition ", said)
    replay = "python -m chaos sim partition --seeds 1 --first-seed 1 --bug old-checkpoint"
    assert f"replay: {replay}\n" in said
    kept = json.loads(result.read_bytes())
    assert kept["failed"][0]["replay"] == replay
    assert 1 <= len(kept["smallest"]["plan"]) < 3
    assert replay in page.read_text(encoding="utf-8")


def test_a_rare_state_that_was_never_reached_fails_a_search_that_asks_for_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "crash-loop", "--seeds", "1", "--processes", "1"]) == 0
    capsys.readouterr()
    assert main(["sim", "crash-loop", "--seeds", "1", "--processes", "1", "--reach-all"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"never: .*NodeLost", said)
    assert "rare states were never reached" in said
