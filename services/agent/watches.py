"""The marker watches of a node: begun with their runs, looked at while those live, and once more when they ended.

What is watched is a user's: a directory that hangs costs its own run's checkpoints and no other's, and no end waits for
it for ever. It never decides anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import structlog

from services.agent.aside import Aside
from services.agent.environment import Surroundings
from services.agent.orders import Order
from services.agent.outbox import Saved
from services.agent.watching import Watching, begin_watch
from statemachines.values import RunId
from tidemill.v1 import common_pb2

LOOK_EVERY_S: Final = 2.0
BEGIN_S: Final = 10.0
# A whole checkpoint may have to be synced and hashed; longer than this, its end is told without it.
LAST_LOOK_S: Final = 60.0

log = structlog.get_logger()


class _Watched:
    """One run's watch: one look at a time. Once `over` only the last look follows, once `told` nothing is said."""

    def __init__(self, watching: Watching) -> None:
        self.watching = watching
        self.looking = asyncio.Lock()
        self.over = False
        self.told = False


class Watches:
    """`found` is told of each checkpoint; `spawn` runs what goes on in the background."""

    def __init__(
        self,
        paths: Aside,
        *,
        found: Callable[[Saved], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        last_look_s: float = LAST_LOOK_S,
    ) -> None:
        self._paths = paths
        self._found = found
        self._spawn = spawn
        self._last_look_s = last_look_s
        self._watched: dict[RunId, _Watched] = {}

    async def begin(self, order: Order, launch: common_pb2.Launch, around: Surroundings) -> None:
        """Before the run starts: what is there is not its own. Raises TimeoutError, ValueError."""
        if _is_watched(order, launch):
            begin = partial(begin_watch, order, launch, around, ignore_present=True)
            what = "the directory that is watched for checkpoints"
            watching = await self._paths.call(begin, what=what, within_s=BEGIN_S, owner=order.job)
            self.add(order.run, watching)

    def resume(self, order: Order, launch: common_pb2.Launch, around: Surroundings) -> bool:
        """An earlier agent started it; whether it is watched. What that one told is told again, which is harmless."""
        watched = _is_watched(order, launch)
        if watched:  # Reads nothing yet.
            self.add(order.run, begin_watch(order, launch, around, ignore_present=False))
        return watched

    def add(self, run: RunId, watching: Watching) -> None:
        """Look at it from now on."""
        watched = self._watched[run] = _Watched(watching)
        self._spawn(self._follow(watched))

    def drop(self, run: RunId) -> None:
        """It did not start."""
        watched = self._watched.pop(run, None)
        if watched is not None:
            watched.over = True

    async def end(self, run: RunId) -> None:
        """Nothing of the run lives: the last look, which is given up after a while. Said twice, both wait for it."""
        watched = self._watched.get(run)
        if watched is None:
            return
        watched.over = True
        try:
            async with asyncio.timeout(self._last_look_s):
                await self._look(watched, last=True)
        except TimeoutError:
            log.warning("last_look_given_up", run=run, after_s=self._last_look_s)
        watched.told = True
        self.drop(run)

    async def _follow(self, watched: _Watched) -> None:
        while not watched.over:
            await self._look(watched, last=False)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self, watched: _Watched, *, last: bool) -> None:
        look, job = partial(watched.watching.look, last=last), watched.watching.job
        async with watched.looking:
            for saved in await self._paths.call(look, what="a look", within_s=None, owner=job):
                if not watched.told:
                    self._found(saved)


def _is_watched(order: Order, launch: common_pb2.Launch) -> bool:
    """The first member of a gang speaks for its checkpoints."""
    return order.rank == 0 and launch.HasField("marker")
