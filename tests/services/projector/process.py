"""A projector as a process that is killed again and again while a log grows; what it leaves is what the core says."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence

from services.projector.core import Projection
from services.runtime.ports import EventLog, LogRecord
from services.runtime.projection import FlatFact
from tests.fixtures.stack import ROOT

WITHIN_S = 60.0


def wanted(cell: str, values: Sequence[bytes], offsets: Sequence[int]) -> list[FlatFact]:
    """The facts of a whole log, without any interruption."""
    projection = Projection(cell, None)
    records = [LogRecord(offset, value) for offset, value in zip(offsets, values, strict=True)]
    return [fact for record in records for fact in projection.take(record).facts]


def await_that(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WITHIN_S} s: {what}"
        threading.Event().wait(0.05)


class Process:
    """`python -m services.projector` with its flags; its monitor's address comes from its log."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.projector", "--log-format", "json", *flags],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, object]] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self.lines.append(json.loads(line) if line.startswith("{") else {"event": line})

    def said(self, event: str) -> list[dict[str, object]]:
        return [line for line in self.lines if line["event"] == event]

    def get(self, path: str) -> str:
        """An answer of its monitor, once it has said where that is."""
        await_that(lambda: bool(self.said("monitor_listens")), "the monitor's address")
        url = f"http://{self.said('monitor_listens')[0]['address']}{path}"
        with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
            text: str = answer.read().decode()
            return text

    def is_ready(self) -> bool:
        assert self._process.poll() is None, self.lines
        try:
            return self.get("/readyz") == "ready\n"
        except OSError:
            return False

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def stop(self) -> int:
        self._process.terminate()
        return self.end()

    def end(self) -> int:
        """Wait for its end; the exit code."""
        code = self._process.wait(WITHIN_S)
        self._reading.join()
        return code


def grow_and_kill(
    log: EventLog, values: Sequence[bytes], flags: Sequence[str], *, kills: int, seed: int
) -> Process:
    """Append the values while projectors are started and killed at chance moments; the last one is left running."""
    chance = random.Random(seed)

    def grow() -> None:
        for value in values:
            log.append(value)

    growing = threading.Thread(target=grow)
    growing.start()
    for _ in range(kills):
        process = Process(flags)
        await_that(lambda p=process: bool(p.said("projector_starts")), "it starts")  # type: ignore[misc]
        threading.Event().wait(chance.uniform(0.0, 0.3))
        process.kill()
    growing.join(WITHIN_S)
    return Process(flags)
