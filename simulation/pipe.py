"""One direction of a connection: what is sent arrives in order, a little later, or not before the way is open again.

Nothing is lost inside a connection; with it, everything is that has not arrived.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from simulation.kernel import US_PER_MS, Kernel

M = TypeVar("M")
_FASTEST_US: Final = 1_000
_SPREAD_US: Final = 2_000
_BLOCKED_US: Final = 50 * US_PER_MS


class Pipe(Generic[M]):
    """`blocked`: nothing gets through now (a cut, or whoever reads is paused)."""

    def __init__(
        self,
        kernel: Kernel,
        chance: random.Random,
        blocked: Callable[[], bool],
        deliver: Callable[[M], None],
    ) -> None:
        self._kernel, self._chance = kernel, chance
        self._blocked, self._deliver = blocked, deliver
        self._queue: deque[tuple[int, M]] = deque()
        self._pumping = False
        self._closed = False

    def send(self, message: M) -> None:
        """It is on its way, or lost when the connection is gone already."""
        if self._closed:
            return
        queue = self._queue
        at_us = self._kernel.now_us + _FASTEST_US + int(self._chance.random() * _SPREAD_US)
        if queue and queue[-1][0] > at_us:
            at_us = queue[-1][0]
        queue.append((at_us, message))
        if not self._pumping:
            self._pumping = True
            self._kernel.post(at_us, self._pump)

    def close(self) -> None:
        """Whatever is on its way is lost."""
        self._closed = True
        self._queue.clear()

    def _pump(self) -> None:
        queue, kernel = self._queue, self._kernel
        if queue and self._blocked():
            kernel.post(kernel.now_us + _BLOCKED_US, self._pump)
            return
        now_us = kernel.now_us
        while queue and queue[0][0] <= now_us:  # Closing empties it.
            self._deliver(queue.popleft()[1])
        if queue:
            kernel.post(queue[0][0], self._pump)
        else:
            self._pumping = False
