"""What came in before a deadline passed must be decided before anyone is held to it.

A leader that begins finds deadlines that passed while nobody led, and unread beside them the reports that kept them. It
asks where the inputs end when the first deadline is due, and enforces none before it has decided up to there. Waits
only so long: an offset may hold no record, and a partition may not be reachable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from services.runtime.ports import Inputs, PortError

# A partition of which nothing more was decided for so long has nothing more, or cannot be reached.
PATIENCE_MS: Final = 10_000
# Asking for an end holds up a turn of the leader when a partition cannot be reached.
ASK_EVERY_MS: Final = 5_000
Place: TypeAlias = tuple[str, int]


class Backlog:
    """The inputs of one term up to the first deadline in it."""

    def __init__(self, inputs: Inputs, weather: Callable[[PortError], None]) -> None:
        self._inputs = inputs
        self._weather = weather
        self._ends: dict[Place, int] = {}
        self._unasked: deque[Place] | None = None  # None: no deadline was due yet.
        self._began_ms = 0
        self._asked_ms = 0
        self._undecided = 0
        self._since_ms = 0

    def decided(self, positions: Mapping[Place, int], now_ms: int) -> bool:
        """Whether deadlines may be enforced; `positions` are those of every input partition."""
        if self._unasked is None:
            self._unasked, self._began_ms = deque(positions), now_ms
            self._ask(self._unasked, now_ms)
        elif now_ms - self._began_ms >= PATIENCE_MS:
            self._unasked.clear()  # However much of the others is undecided: asking holds that up.
        elif now_ms - self._asked_ms >= ASK_EVERY_MS:
            self._ask(self._unasked, now_ms)
        left = {place: end - positions.get(place, 0) for place, end in self._ends.items()}
        undecided = sum(count for count in left.values() if count > 0)
        if undecided != self._undecided:
            self._undecided, self._since_ms = undecided, now_ms
        if self._unasked or (undecided and now_ms - self._since_ms < PATIENCE_MS):
            return False
        self._ends.clear()  # What is late from now on is late.
        return True

    def again_in_ms(self, now_ms: int) -> int:
        """When `decided` may say otherwise though nothing comes in; 0 when it was not asked or has said yes."""
        if self._unasked:
            at_ms = min(self._asked_ms + ASK_EVERY_MS, self._began_ms + PATIENCE_MS)
        else:
            at_ms = self._since_ms + PATIENCE_MS if self._ends else 0
        return max(0, at_ms - now_ms)

    def _ask(self, unasked: deque[Place], now_ms: int) -> None:
        """Up to the first that cannot be asked, which goes behind the others: a turn waits for one at most."""
        self._asked_ms = now_ms
        while unasked:
            place = unasked.popleft()
            try:
                self._ends[place] = self._inputs.end(*place)
            except PortError as error:
                self._weather(error)
                unasked.append(place)
                return
