"""Runs work that reads the log again in worker threads: few at a time, each call with a log of its own, ended with it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from typing import Final, Protocol, TypeVar

from services.gateway.refold import Cancelled
from services.gateway.refusal import Refusal, Status
from services.runtime.codec import UnknownFactError
from services.runtime.ports import DamagedError, EventLog, PortError, Snapshots

WORKERS_MAX: Final = 2
READINGS_MAX: Final = 64
# Of those that follow: they stay for ever, and are not to keep out who asks once.
FOLLOWERS_MAX: Final = 64
PROGRESS_EVERY_S: Final = 0.5

T = TypeVar("T")


class Stored(Protocol):
    """Opens what is read; whoever opens closes."""

    def event_log(self) -> EventLog:
        """A log of its own."""

    def snapshots(self) -> Snapshots:
        """The snapshots."""


class Reading:
    """One call's log. `stop` is set when nobody waits for the answer any more."""

    def __init__(self, log: EventLog, workers: asyncio.Semaphore) -> None:
        self.log = log
        self.stop = threading.Event()
        self._workers = workers

    async def run(self, work: Callable[[], T]) -> T:
        """Do it in a thread, when there is one; raises Refusal for weather."""
        return await self.run_made(lambda: work)

    async def run_made(self, make: Callable[[], Callable[[], T]]) -> T:
        """The same for work that is made, on the loop, once there is a thread: of what is large none waits in a line.

        The thread is waited for even when the call is cancelled: it uses the log, which is closed next.
        """
        async with self._workers:
            running = asyncio.create_task(asyncio.to_thread(make()))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                self.stop.set()
                await asyncio.wait([running])
                if not running.cancelled():
                    running.exception()  # Looked at: nobody else will.
                raise
            except (PortError, UnknownFactError, Cancelled) as error:
                raise _refused(error) from error

    async def progress(self, items: Iterator[T]) -> AsyncGenerator[T, None]:
        """What it yields, thinned to the newest item of each PROGRESS_EVERY_S, and the last."""
        ended = False
        while not ended:
            item, ended = await self.run(lambda: _advance(items))
            if item is not None:
                yield item


class Lookback:
    """Opens readings, so many at a time and no more."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._workers = asyncio.Semaphore(WORKERS_MAX)
        self._readings = self._followers = 0

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Reading]:
        """A log to read for one call that comes to an end; raises Refusal when too many do."""
        if self._readings >= READINGS_MAX:
            raise _too_many(f"{READINGS_MAX} calls read the log already")
        self._readings += 1
        try:
            async with self._opened() as reading:
                yield reading
        finally:
            self._readings -= 1

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Reading]:
        """A log to read for one call that goes on; raises Refusal when too many do."""
        if self._followers >= FOLLOWERS_MAX:
            raise _too_many(f"{FOLLOWERS_MAX} calls follow the log already")
        self._followers += 1
        try:
            async with self._opened() as reading:
                yield reading
        finally:
            self._followers -= 1

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Reading]:
        try:
            with closing(await asyncio.to_thread(self._stored.event_log)) as log:
                reading = Reading(log, self._workers)
                try:
                    yield reading
                finally:
                    reading.stop.set()
        except PortError as error:
            raise _refused(error) from error

    async def run(self, work: Callable[[EventLog, threading.Event], T]) -> T:
        """One piece of work; raises Refusal."""
        async with self.reading() as reading:
            return await reading.run(lambda: work(reading.log, reading.stop))

    def snapshots(self) -> Snapshots:
        """The snapshots; the caller closes them."""
        return self._stored.snapshots()


def _too_many(held: str) -> Refusal:
    return Refusal(
        Status.RESOURCE_EXHAUSTED,
        "too_many_readings",
        f"{held}; ask again in a while",
        retry_after_ms=2_000,
    )


def _advance(items: Iterator[T]) -> tuple[T | None, bool]:
    """The newest item after PROGRESS_EVERY_S, or the last one; and whether it was the last."""
    ends = time.monotonic() + PROGRESS_EVERY_S
    newest: T | None = None
    for item in items:
        newest = item
        if time.monotonic() >= ends:
            return newest, False
    return newest, True


def _refused(error: Exception) -> Refusal:
    if isinstance(error, DamagedError):
        return Refusal(Status.DATA_LOSS, "log_damaged", str(error))
    if isinstance(error, UnknownFactError):
        return Refusal(Status.FAILED_PRECONDITION, "log_newer", str(error))
    return Refusal(
        Status.UNAVAILABLE,
        "log_unavailable",
        f"the log cannot be read now: {error}",
        retry_after_ms=1_000,
    )
