"""Readings of the log: so many at a time, those that follow apart, and nothing is made for one that waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from services.gateway.lookback import FOLLOWERS_MAX, READINGS_MAX, WORKERS_MAX, Lookback
from services.gateway.refusal import Refusal
from services.runtime.ports import EventLog, Snapshots
from tests.services.gateway.logs import Kept, Log

WITHIN_S = 30.0


class Stored:
    """Opens empty logs."""

    def event_log(self) -> EventLog:
        return Log([])

    def snapshots(self) -> Snapshots:
        return Kept()


async def test_those_that_follow_keep_nobody_out_who_asks_once_nor_the_other_way_round() -> None:
    lookback = Lookback(Stored())
    async with AsyncExitStack() as stack:
        for _ in range(FOLLOWERS_MAX):
            await stack.enter_async_context(lookback.following())
        with pytest.raises(Refusal, match="calls follow the log already"):
            await stack.enter_async_context(lookback.following())
        for _ in range(READINGS_MAX):
            await stack.enter_async_context(lookback.reading())
        with pytest.raises(Refusal, match="calls read the log already"):
            await stack.enter_async_context(lookback.reading())
    async with lookback.following(), lookback.reading():  # What ended has made room.
        pass


async def test_work_is_made_only_once_there_is_a_thread_for_it() -> None:
    lookback, go = Lookback(Stored()), threading.Event()
    made: list[int] = []

    def waits() -> bool:
        return go.wait(WITHIN_S)

    async def one(number: int) -> bool:
        def make() -> Callable[[], bool]:
            made.append(number)
            return waits

        async with lookback.reading() as reading:
            return await reading.run_made(make)

    async with asyncio.timeout(WITHIN_S):
        running = [asyncio.create_task(one(number)) for number in range(WORKERS_MAX + 3)]
        async with lookback.reading() as reading:
            last = asyncio.create_task(reading.run(lambda: True))
            while len(made) < WORKERS_MAX:
                await asyncio.wait(running, timeout=0.01)
            first = list(made)
            go.set()
            assert await last
        assert all(await asyncio.gather(*running))
    assert (len(first), sorted(made)) == (WORKERS_MAX, list(range(WORKERS_MAX + 3)))
