"""What happened, in order, on the terminal and for out/demo.json: our own acts, and facts read from the cell's log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final, TextIO

from services.runtime import codec
from statemachines.facts import CheckpointSaved, Fact, TermOpened
from tidemill import Client, TidemillError

# Facts that tell the story; the rest is in the log for who wants it.
_TOLD: Final[Mapping[str, str]] = {
    "TermOpened": "leader",
    "NodeJoined": "node",
    "NodeSuspected": "node",
    "NodeLost": "node",
    "JobAdmitted": "job",
    "GangPlaced": "job",
    "AttemptStarted": "job",
    "AttemptStopping": "job",
    "AttemptEnded": "job",
    "AttemptResumed": "job",
    "CheckpointSaved": "save",
    "BreakerOpened": "alarm",
}
_COLOURS: Final[Mapping[str, str]] = {
    "act": "1",
    "fault": "1;31",
    "leader": "35",
    "node": "33",
    "job": "36",
    "save": "32",
    "alarm": "31",
    "good": "1;32",
    "bad": "1;31",
}


class Timeline:
    """Lines of (seconds since the start, kind, text), printed as they come. Any thread may add one."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self.lines: list[dict[str, object]] = []
        self._began = time.monotonic()
        self._out = out
        self._colour = out.isatty() and "NO_COLOR" not in os.environ
        self._adding = threading.Lock()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def add(self, kind: str, text: str) -> None:
        """Say it and keep it."""
        with self._adding:
            at = self.seconds
            self.lines.append({"at_s": round(at, 3), "kind": kind, "text": text})
            head = f"{at:6.1f} s  {kind:<6}  "
            code = _COLOURS.get(kind, "")
            shown = f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text
            print(f"{head}{shown}", file=self._out, flush=True)


class Follower:
    """Tells facts of the log as they are recorded, until closed; survives whatever the demo kills."""

    def __init__(self, client: Client, timeline: Timeline) -> None:
        # Job ids by what people call them; jobs without a name here are not told.
        self.names: dict[str, str] = {}
        # Only this one's checkpoints are told.
        self.saves_of = "main"
        self.leaders: list[dict[str, object]] = []
        self._client = client
        self._timeline = timeline
        self._closing = False
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell nothing more."""
        self._closing = True

    def _follow(self) -> None:
        try:
            for read in self._client.entries(follow=True):
                _, facts = codec.decode_body(read.entry.body)
                for recorded, line in zip(facts, read.lines, strict=True):
                    if self._closing:
                        return
                    self._tell(recorded.fact, line.text)
        except TidemillError as error:
            if not self._closing:
                self._timeline.add("bad", f"the log can no longer be followed: {error}")

    def _tell(self, fact: Fact, text: str) -> None:
        if isinstance(fact, TermOpened):
            self.leaders.append({"term": fact.term, "leader": fact.leader})
        if isinstance(fact, CheckpointSaved):
            text = f"checkpoint of step {fact.step} is durable"
        kind = _TOLD.get(type(fact).__name__)
        job = getattr(fact, "job", None)
        name = self.names.get(job, "") if job else ""
        if isinstance(fact, CheckpointSaved) and name != self.saves_of:
            return
        if kind is not None and (name or not job):
            self._timeline.add(kind, f"{name}: {text}" if name else text)
