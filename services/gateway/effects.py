"""What the core asks of its driver, as values: writes to make, calls to answer, streams that have something to send.

The core appends, the driver takes after every input, and ticks when something is due. Nothing here does I/O.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec
from google.protobuf.message import Message

from services.gateway.refusal import Refusal
from services.runtime.ports import Outgoing, PortError

Result: TypeAlias = Message | Refusal


class Now(msgspec.Struct, frozen=True):
    """The time of an input: `wall_ms` stamps records, `mono_ms` measures."""

    wall_ms: int
    mono_ms: int


# Writes that may wait for a log that does not take them; telemetry and reports of trainers are turned away first.
WRITES_MAX: Final = 20_000

# Called once with None when all of a write is durable, or with what went wrong: then nobody knows what was stored.
Written: TypeAlias = Callable[[PortError | None, Now], None]


class Write(msgspec.Struct, frozen=True):
    """Store the blobs, then the records; both durable before the write is reported done."""

    id: int
    records: tuple[Outgoing, ...]
    blobs: tuple[bytes, ...] = ()


class Effects:
    """What has come of the inputs since it was last taken."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.answers: list[tuple[int, Result]] = []
        self.ready: dict[Outbox, None] = {}
        self._then: dict[int, Written] = {}
        self._next_write = 1
        self._timers: list[tuple[int, int, Callable[[Now], None]]] = []
        self._next_timer = 1

    def publish(
        self, records: Sequence[Outgoing], then: Written, *, blobs: tuple[bytes, ...] = ()
    ) -> None:
        """Ask for a write; `then` is called when its outcome is known."""
        self.writes.append(Write(self._next_write, tuple(records), blobs))
        self._then[self._next_write] = then
        self._next_write += 1

    def written(self, write: int, error: PortError | None, now: Now) -> None:
        """The outcome of a write is known."""
        self._then.pop(write)(error, now)

    def at(self, mono_ms: int, then: Callable[[Now], None]) -> None:
        """Call `then` at the first tick that is not before this time. It cannot be taken back: `then` looks."""
        heapq.heappush(self._timers, (mono_ms, self._next_timer, then))
        self._next_timer += 1

    def tick(self, now: Now) -> None:
        """Time has passed."""
        while self._timers and self._timers[0][0] <= now.mono_ms:
            heapq.heappop(self._timers)[2](now)

    def due_ms(self) -> int | None:
        """When `tick` is wanted next, on the monotonic clock."""
        return self._timers[0][0] if self._timers else None

    @property
    def congested(self) -> bool:
        """Whether so many writes wait that what may be lost, or will be sent again, is not to be added."""
        return len(self._then) >= WRITES_MAX

    def take(self) -> tuple[list[Write], list[tuple[int, Result]], dict[Outbox, None]]:
        """(writes, answers, streams that may have something to send), each since the last call."""
        taken = self.writes, self.answers, self.ready
        self.writes, self.answers, self.ready = [], [], {}
        return taken


class Outbox:
    """What one stream has to send; pulled by whoever can write to it, so a slow peer delays nobody else.

    Bounded: a peer that does not keep up is cut, with an error that says so.
    """

    def __init__(self, effects: Effects, *, limit: int) -> None:
        self.refusal: Refusal | None = None
        self.ended = False
        self._effects = effects
        self._queue: deque[Message] = deque()
        self._limit = limit

    def pull(self, now: Now) -> Message | None:  # noqa: ARG002 - other streams look at it
        """The next message, None when there is none now; raises the Refusal that the stream was cut with."""
        if self.refusal is not None:
            raise self.refusal
        return self._queue.popleft() if self._queue else None

    def put(self, message: Message) -> None:
        """Add a message, or cut the stream when it has too many."""
        if len(self._queue) >= self._limit:
            self.cut(self.too_slow())
        if self.refusal is None:
            self._queue.append(message)
        self.wake()

    def too_slow(self) -> Refusal:
        """What a peer is told that does not read."""
        raise NotImplementedError

    def cut(self, refusal: Refusal) -> None:
        """End the stream with an error; what was queued is dropped. The first reason stays."""
        self.refusal = self.refusal or refusal
        self._queue.clear()
        self.wake()

    def end(self) -> None:
        """End the stream once what is queued has been sent."""
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """There may be something to pull."""
        self._effects.ready[self] = None
