"""The diagrams say what the tables say, and the page in docs/ is fresh."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from statemachines import diagrams, run
from statemachines.diagrams import BEGIN, DRAWINGS, END, PAGE, Drawing
from statemachines.lifecycle import Word

ARROW: Final = re.compile(r"    (\S+) --> (\S+): (.+)")


def test_the_page_is_fresh() -> None:
    command = [sys.executable, "-m", "statemachines.diagrams", "--check"]
    result = subprocess.run(
        command, cwd=PAGE.parent.parent, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.title)
def test_every_pair_of_the_table_is_an_arrow_and_every_arrow_a_pair(drawing: Drawing) -> None:
    def ways(after: Word | frozenset[Word]) -> list[Word]:
        return sorted(after) if isinstance(after, frozenset) else [after]

    told = {
        (before, after, fact)
        for before, after, facts in ARROW.findall(diagrams.draw(drawing))
        for fact in facts.split(", ")
    }
    table = {
        (before, state, fact.__name__)
        for (before, fact), after in drawing.table.items()
        for state in ways(after)
    }
    begins = {("[*]", state, fact.__name__) for state, fact in drawing.begins}
    leaves = {(state, "[*]", fact.__name__) for state, fact in drawing.leaves}
    assert told == table | begins | leaves
    reached = {after for _, after, _ in told}
    assert reached - {"[*]"} == set(drawing.states), "a state that nothing leads to"


def test_a_drawing_reads_like_this() -> None:
    drawing = next(each for each in DRAWINGS if each.states is run.RunState)
    assert diagrams.draw(drawing).splitlines() == [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> placed: GangPlaced",
        "    placed --> running: RunStarted",
        "    placed --> lost: NodeLost",
        "    placed --> ended: RunEnded",
        "    running --> lost: NodeLost",
        "    running --> ended: RunEnded",
        "    lost --> lost: NodeLost",
        "    lost --> ended: RunEnded",
        "```",
    ]


def test_only_what_is_between_the_markers_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "lifecycles.md"
    page.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    assert diagrams.main(["--check"], page) == 1
    assert "is stale" in capsys.readouterr().err
    assert diagrams.main([], page) == 0
    assert page.read_text() == f"before\n{diagrams.section()}\nafter\n"
    assert diagrams.main(["--check"], page) == 0


def test_a_page_without_markers_and_an_unknown_option_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "lifecycles.md"
    page.write_text(f"only {BEGIN}")
    with pytest.raises(ValueError, match=r"lifecycles\.md needs the lines"):
        diagrams.main([], page)
    page.write_text(diagrams.section())
    assert diagrams.main(["--chekc"], page) == 2
    assert "usage:" in capsys.readouterr().err
