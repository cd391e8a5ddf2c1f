"""When a child of the cell is started again, and when not. Pure: exits and times in, decisions out.

Services are crash-only: an unexpected end is answered by a start, at once the first time, later and later while it
keeps ending. An exit code that says "a person must act" is not answered by a start: the child stays down and the
message stays visible, and the others go on unless they cannot. Never touches a process.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

FIRST_WAIT_MS: Final = 100
LONGEST_WAIT_MS: Final = 2_000
# A child that lived this long is taken to be well: the next wait is the first again.
WELL_AFTER_MS: Final = 30_000


class Down(msgspec.Struct, frozen=True):
    """A child that ended and is not to be started again by itself. `over`: without it the cell does not go on."""

    name: str
    code: int
    over: bool


class Again(msgspec.Struct, frozen=True):
    """A child that is to be started again at `at_ms`."""

    name: str
    code: int
    at_ms: int


class Supervision:
    """Decides about the children of one cell. `final` are exit codes that only a person can mend.

    `needed` are groups of which one child must be able to run for the cell to go on.
    """

    def __init__(self, final: Collection[int], needed: Collection[Collection[str]] = ()) -> None:
        self._final = frozenset(final)
        self._needed = [frozenset(group) for group in needed]
        self._down: set[str] = set()
        self._started_at_ms: dict[str, int] = {}
        self._wait_ms: dict[str, int] = {}
        self._due: dict[str, int] = {}

    def started(self, name: str, now_ms: int) -> None:
        """The child runs."""
        self._started_at_ms[name] = now_ms
        self._due.pop(name, None)

    def ended(self, name: str, code: int, now_ms: int) -> Again | Down:
        """The child ended without being asked to; `code` is negative for a signal."""
        lived_ms = now_ms - self._started_at_ms.pop(name, now_ms)
        if code in self._final:
            self._wait_ms.pop(name, None)
            self._down.add(name)
            return Down(name, code, any(group <= self._down for group in self._needed))
        well = lived_ms >= WELL_AFTER_MS or name not in self._wait_ms
        wait_ms = 0 if well else max(FIRST_WAIT_MS, min(2 * self._wait_ms[name], LONGEST_WAIT_MS))
        self._wait_ms[name] = wait_ms
        self._due[name] = now_ms + wait_ms
        return Again(name, code, now_ms + wait_ms)

    def due(self, now_ms: int) -> list[str]:
        """Children to start now, in the order in which they became due."""
        ready = sorted((at_ms, name) for name, at_ms in self._due.items() if at_ms <= now_ms)
        return [name for _, name in ready]

    def next_due_ms(self) -> int | None:
        """When the next child is to be started."""
        return min(self._due.values(), default=None)
