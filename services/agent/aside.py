"""Calls that may hang for ever, each in a thread of its own: a dead file server, a wedged driver.

Whoever asked waits for a bounded time and goes on without an answer. A call that hangs keeps its place, so there are
never more threads than places, and it does not hold back the end of the agent. Of all places one owner gets a few, so
what hangs for one leaves room for the others. It must never touch the core.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Aside:
    """So many places, of which one owner gets `places_each` (all, if not said). Used on one event loop."""

    def __init__(self, *, places: int, places_each: int | None = None) -> None:
        self._room = asyncio.Semaphore(places)
        self._places_each = places_each or places
        # An owner's room is kept by whoever waits for it or is in it.
        self._rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def call(
        self, work: Callable[[], T], *, what: str, within_s: float | None, owner: str = ""
    ) -> T:
        """What `work` answers or raises. Raises TimeoutError, naming `what`, when that or a place for it took too long."""
        room = self._rooms.setdefault(owner, asyncio.Semaphore(self._places_each))
        try:
            async with asyncio.timeout(within_s):
                await self._enter(room)
                return await self._begin(work, room)
        except TimeoutError as error:
            if error.args:  # The work's own.
                raise
            raise TimeoutError(f"{what} did not answer within {within_s} s") from error

    async def _enter(self, room: asyncio.Semaphore) -> None:
        """The owner's place first: who waits for one of those keeps none of the others'."""
        await room.acquire()
        try:
            await self._room.acquire()
        except BaseException:
            room.release()
            raise

    def _begin(self, work: Callable[[], T], room: asyncio.Semaphore) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def end(tell: Callable[[Any], None], said: Any) -> None:
            self._room.release()
            room.release()
            if not answer.done():
                tell(said)

        def run() -> None:
            said: tuple[Callable[[Any], None], Any]
            try:
                said = (answer.set_result, work())
            except Exception as error:  # noqa: BLE001 - handed to whoever asked
                said = (answer.set_exception, error)
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
                loop.call_soon_threadsafe(end, *said)

        threading.Thread(target=run, name="aside", daemon=True).start()
        return answer
