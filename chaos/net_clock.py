"""A wall clock that can be stepped, for one process that loads libfaketime first.

A file says how many seconds the process is to be off; it is read at each look at the clock. Clocks that only grow stay
true, and so do sleeps; what the process starts with an environment of its own is on time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class SteppedClock:
    """The file of one process; right at first. `library`: libfaketime 0.9.11 or newer, before which sleeps fail."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file, self._library = file, library
        self.step(0)

    def step(self, by_s: int) -> None:
        """From now on the process believes that it is so much later than it is."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{by_s:+d}\n", encoding="ascii")
        new.replace(self._file)

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the process, beside what else it is told."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
