"""Virtual time and seeded chance: the only sources of order and luck in a simulation.

Events happen in order of (time, sequence of scheduling), so a history is a function of its seed. Time is whole
microseconds. Each stream of chance is drawn from (seed, name), so that one more draw in one place moves no other.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import heapq
import random
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

US_PER_MS: Final = 1_000
US_PER_S: Final = 1_000_000


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """While inside, cycles are looked for less often, as in the services: entities are no work for their collector.

    Afterwards all is: every recovery in here froze what there was, and so would keep each world of a long search.
    """
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        gc.collect()


class Timer(msgspec.Struct):
    """A scheduled call; `cancel` keeps it from happening. `call` is None once it happened or was cancelled."""

    at_us: int
    call: Callable[[], None] | None

    def cancel(self) -> None:
        """It does not happen; harmless when it has."""
        self.call = None


class Kernel:
    """Virtual time of one history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_us = 0
        # Milliseconds since the history began.
        self.now_ms = 0
        self.events = 0
        # Bugs: what a process raised that is no weather.
        self.troubles: list[str] = []
        self._heap: list[tuple[int, int, Timer | Callable[[], None]]] = []
        self._sequence = 0
        self._history = hashlib.sha256()

    def chance(self, name: str) -> random.Random:
        """A stream of chance of its own."""
        key = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return random.Random(int.from_bytes(key, "big"))

    def at(self, at_us: int, call: Callable[[], None]) -> Timer:
        """Call at a time; now when that is past. Calls of one time happen in the order they were scheduled in."""
        at_us = max(at_us, self.now_us)
        timer = Timer(at_us, call)
        self._sequence += 1
        heapq.heappush(self._heap, (at_us, self._sequence, timer))
        return timer

    def after(self, delay_us: int, call: Callable[[], None]) -> Timer:
        """Call after a delay."""
        return self.at(self.now_us + delay_us, call)

    def post(self, at_us: int, call: Callable[[], None]) -> None:
        """As `at`, for what is not past and is never cancelled: half the work, for what happens most."""
        self._sequence += 1
        heapq.heappush(self._heap, (at_us, self._sequence, call))

    def run_until(self, at_us: int) -> None:
        """Let everything up to and including this time happen."""
        heap, pop, us_per_ms = self._heap, heapq.heappop, US_PER_MS
        while heap and heap[0][0] <= at_us:
            when, _, due = pop(heap)
            if isinstance(due, Timer):
                call, due.call = due.call, None
                if call is None:
                    continue
            else:
                call = due
            self.now_us = when
            self.now_ms = when // us_per_ms
            self.events += 1
            call()
        if at_us > self.now_us:
            self.now_us, self.now_ms = at_us, at_us // US_PER_MS

    def note(self, what: str) -> None:
        """Make something that happened part of the history's digest."""
        self._history.update(f"{self.now_us} {what}\n".encode())

    def digest(self) -> str:
        """Of all that was noted: equal for equal seeds."""
        return self._history.hexdigest()
