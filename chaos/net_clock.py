"""A wall clock that can be stepped, for one process: `python -m chaos.net_clock FILE MODULE ...` runs MODULE on it.

FILE says how many seconds the process is to be off; it is read at each look at the clock. Clocks that only grow stay
true. Not libfaketime: it fails `time.sleep` with EINVAL, which in Python waits for an absolute time of such a clock.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_NS_PER_S: Final = 1_000_000_000


class SteppedClock:
    """The file of one process; right at first."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)

    def step(self, by_s: int) -> None:
        """From now on the process believes that it is so much later than it is."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{by_s}", encoding="ascii")
        new.replace(self._file)

    @property
    def prefix(self) -> tuple[str, ...]:
        """The module to run, and what goes before the one that is meant."""
        return ("chaos.net_clock", str(self._file))


def stepped(file: Path, real_ns: Callable[[], int]) -> Callable[[], int]:
    """A clock as `time.time_ns`."""
    return lambda: real_ns() + int(file.read_text(encoding="ascii")) * _NS_PER_S


def main(argv: Sequence[str]) -> None:
    """Run the module as if it were the program."""
    clock = stepped(Path(argv[0]), time.time_ns)
    time.time_ns = clock
    time.time = lambda: clock() / _NS_PER_S  # noqa: TID251 - to be replaced
    sys.argv = list(argv[1:])
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
