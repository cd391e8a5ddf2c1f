"""Watches of runs side by side: one that hangs holds back neither another nor an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from services.agent.aside import Aside
from services.agent.markers import Watch
from services.agent.outbox import Saved
from services.agent.watches import Watches
from services.agent.watching import Watching
from statemachines.values import Reach, RunId, Tier
from tests.services.agent.world import order

A, B = RunId("a.1.0"), RunId("b.1.0")


class Told(Watching):
    """Looks answer what they are given to answer."""

    def __init__(self, run: RunId, look: Callable[[bool], Sequence[Saved]]) -> None:
        super().__init__(order(run), Watch("directory", Path("/nowhere")), Reach.CELL)
        self._answer = look

    def look(self, *, last: bool) -> Sequence[Saved]:
        return self._answer(last)


def saved(job: str, step: int) -> Saved:
    return Saved(job, 1, step, f"/c/{job}/{step}", 1, Tier.REMOTE, Reach.CELL, "")


@pytest.fixture
def go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


class Heard:
    """The watches of a node, and what they said."""

    def __init__(self, last_look_s: float) -> None:
        self.steps: list[tuple[str, int]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.watches = Watches(
            Aside(places=2, places_each=1),
            found=self.hear,
            spawn=self.spawn,
            last_look_s=last_look_s,
        )

    def hear(self, found: Saved) -> None:
        self.steps.append((found.job, found.step))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))


@pytest.fixture
async def node() -> AsyncIterator[Heard]:
    made = Heard(last_look_s=0.05)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_a_look_that_hangs_holds_back_no_other_run_and_not_its_own_end(
    node: Heard, go: threading.Event
) -> None:
    def hangs(last: bool) -> Sequence[Saved]:
        go.wait()
        return [saved("a", 1)]

    node.watches.add(A, Told(A, hangs))
    node.watches.add(B, Told(B, lambda last: [saved("b", 2)] if last else []))
    await node.watches.end(A)
    await node.watches.end(B)
    assert node.steps == [("b", 2)]
    go.set()
    await node.tasks[0]
    assert node.steps == [("b", 2)]  # The end of a was told: nothing of it follows.


async def test_looks_of_one_job_that_hang_leave_room_for_other_jobs(
    node: Heard, go: threading.Event
) -> None:
    def hangs(last: bool) -> Sequence[Saved]:
        go.wait()
        return []

    for run in (A, RunId("a.2.0")):
        node.watches.add(run, Told(run, hangs))
        await node.watches.end(run)
    node.watches.add(B, Told(B, lambda last: [saved("b", 2)] if last else []))
    await node.watches.end(B)
    assert node.steps == [("b", 2)]


async def test_what_a_look_under_way_finds_is_told_before_the_end(
    go: threading.Event,
) -> None:
    begun = threading.Event()

    def slow(last: bool) -> Sequence[Saved]:
        begun.set()
        go.wait()
        return [saved("a", 2 if last else 1)]

    node = Heard(last_look_s=30)
    node.watches.add(A, Told(A, slow))
    await asyncio.to_thread(begun.wait)
    ending = asyncio.ensure_future(node.watches.end(A))
    await asyncio.sleep(0)
    go.set()
    await ending
    assert node.steps == [("a", 1), ("a", 2)]
    await node.tasks[0]


async def test_a_run_that_did_not_start_is_not_watched(node: Heard) -> None:
    node.watches.add(A, Told(A, lambda last: [saved("a", 1)]))
    node.watches.drop(A)
    await node.tasks[0]
    await node.watches.end(A)
    assert node.steps == []


async def test_an_end_that_is_said_twice_waits_for_the_same_last_look(go: threading.Event) -> None:
    def slow(last: bool) -> Sequence[Saved]:
        go.wait()
        return [saved("a", 1)] if last and not heard.steps else []

    heard = Heard(last_look_s=30)
    heard.watches.add(A, Told(A, slow))
    first = asyncio.ensure_future(heard.watches.end(A))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(heard.watches.end(A))
    await asyncio.sleep(0)
    assert not second.done()
    go.set()
    await second
    assert heard.steps == [("a", 1)]
    await asyncio.gather(first, *heard.tasks)
