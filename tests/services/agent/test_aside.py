"""Calls that hang cost their place and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from services.agent.aside import Aside


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """What hangs until the test is over, or lets it go."""
    event = threading.Event()
    yield event
    event.set()


def fail() -> None:
    raise OSError(5, "Input/output error")


async def test_an_answer_and_an_error_come_back() -> None:
    aside = Aside(places=1)
    assert await aside.call(lambda: 7, what="the directory", within_s=30) == 7
    with pytest.raises(OSError, match="Input/output"):
        await aside.call(fail, what="the directory", within_s=30)


async def test_what_hangs_is_given_up_and_keeps_its_place_until_it_returns(
    go: threading.Event,
) -> None:
    aside = Aside(places=2)
    with pytest.raises(TimeoutError, match="the directory did not answer within"):
        await aside.call(go.wait, what="the directory", within_s=0.01)
    assert (
        await aside.call(lambda: 7, what="the directory", within_s=30) == 7
    )  # There was one place more.
    with pytest.raises(TimeoutError):
        await aside.call(go.wait, what="the directory", within_s=0.01)
    waiting = asyncio.ensure_future(aside.call(lambda: 8, what="the directory", within_s=30))
    await asyncio.sleep(0)
    assert not waiting.done()
    go.set()
    assert await waiting == 8


async def test_whoever_stops_waiting_takes_no_place(go: threading.Event) -> None:
    aside = Aside(places=1)
    held = asyncio.ensure_future(aside.call(go.wait, what="the directory", within_s=None))
    given_up = asyncio.ensure_future(aside.call(lambda: 7, what="the directory", within_s=None))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    go.set()
    assert await held
    assert await aside.call(lambda: 9, what="the directory", within_s=30) == 9


async def test_what_hangs_for_one_owner_leaves_room_for_the_others(go: threading.Event) -> None:
    aside = Aside(places=2, places_each=1)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await aside.call(go.wait, what="the directory", within_s=0.01, owner="a")
    assert await aside.call(lambda: 7, what="the directory", within_s=30, owner="b") == 7
    go.set()
    assert await aside.call(lambda: 8, what="the directory", within_s=30, owner="a") == 8


async def test_whoever_stops_waiting_for_the_others_keeps_no_place_of_its_own(
    go: threading.Event,
) -> None:
    aside = Aside(places=1, places_each=1)
    held = asyncio.ensure_future(aside.call(go.wait, what="a", within_s=None, owner="a"))
    await asyncio.sleep(0)
    waiting = [
        asyncio.ensure_future(aside.call(lambda: 7, what="b", within_s=None, owner="b"))
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    waiting[0].cancel()
    go.set()
    assert await held
    assert await waiting[1] == 7


def test_the_loop_may_end_while_something_hangs(go: threading.Event) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await Aside(places=1).call(go.wait, what="the directory", within_s=0.01)

    asyncio.run(give_up())
    go.set()
    for thread in threading.enumerate():
        if thread.name == "aside":
            thread.join(30)
            assert not thread.is_alive()
