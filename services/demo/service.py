"""`tidemilld demo`: a training job loses its node, the cell loses its leader, and the weights come out the same."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from services.demo.embedded import EmbeddedCell
from services.demo.story import Failed, Story
from services.demo.timeline import Timeline
from services.runtime.exits import ExitCode
from services.runtime.trial import TrialError
from tidemill import TidemillError

_OUT = Path("out") / "demo.json"


def main(argv: Sequence[str]) -> int:
    """Run the demo on an embedded cell; 0 when all that must hold did. `argv` may name the file of the result."""
    out = Path(argv[0]) if argv else _OUT
    signal.signal(signal.SIGTERM, _interrupt)
    timeline = Timeline()
    timeline.add("act", "start a cell on this machine: gateway, health, two schedulers")
    story: Story | None = None
    try:
        with EmbeddedCell() as cell:
            story = Story(cell, timeline)
            with contextlib.closing(story):
                story.run()
        story.result.ok = True
    except (Failed, TrialError, TidemillError) as error:
        timeline.add("bad", str(error))
        if story is None:
            return ExitCode.FAILED
        story.result.problem = str(error)
    except KeyboardInterrupt:
        print("\nInterrupted; nothing is left running.", file=sys.stderr)
        return 130
    story.result.seconds = round(timeline.seconds, 1)
    story.result.timeline = timeline.lines
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(story.result), indent=1) + b"\n")
    if story.picture:
        out.with_suffix(".svg").write_text(story.picture, encoding="utf-8")
    verdict = "all of it held" if story.result.ok else "NOT all of it held"
    timeline.add(
        "good" if story.result.ok else "bad",
        f"{verdict}; {out} has the figures, {out.with_suffix('.svg')} the picture",
    )
    return ExitCode.STOPPED if story.result.ok else ExitCode.FAILED


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
