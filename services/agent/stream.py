"""The stream to a gateway: opened, watched, and opened again elsewhere when it ends. It decides nothing about runs.

Waits between attempts are jittered and bounded, and start anew after a welcome. A stream on which no beat is
acknowledged is given up, however healthy its connection looks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from typing import Final

import grpc
import structlog

from services.agent import messages as m
from services.agent import wire
from services.agent.link import Attach, Link
from services.agent.output import Readers
from services.runtime.ports import PortError
from tidemill.v1 import node_service_pb2 as pb

# A gateway that acknowledges nothing for so long is left for the next: up to one beat before, and a new stream after it,
# and the node has still been heard within the silence that makes it lost (10.25 s).
UNHEARD_S: Final = 7.0
FIRST_WAIT_S: Final = 0.2
LONGEST_WAIT_S: Final = 5.0

log = structlog.get_logger()


def jittered(wait_s: float) -> float:
    """So that a thousand agents that lost one gateway do not come back in one moment."""
    return wait_s * random.uniform(0.5, 1.0)  # noqa: S311


class Stream:
    """`hear` is told of everything that concerns the core, in order: Connected, what is answered, Disconnected."""

    def __init__(
        self,
        link: Link,
        *,
        readers: Readers,
        hear: Callable[[m.Connected | m.Disconnected | wire.Heard], None],
    ) -> None:
        self._link = link
        self._readers = readers
        self._hear = hear
        self._outgoing: asyncio.Queue[pb.AttachRequest] | None = None
        self._dropped: asyncio.Future[str] | None = None
        self._heard_s = 0.0
        self._welcomed = False

    def send(self, message: pb.AttachRequest) -> None:
        """Send it on the stream that is open; without one it is not sent."""
        if self._outgoing is not None:
            self._outgoing.put_nowait(message)

    def drop(self, reason: str) -> None:
        """End the open stream; another follows."""
        if self._dropped is not None and not self._dropped.done():
            self._dropped.set_result(reason)

    async def run(self) -> None:
        """Stay attached until cancelled."""
        wait_s = FIRST_WAIT_S
        while True:
            self._welcomed = False
            reason = await self._attach()
            if self._welcomed:
                wait_s = FIRST_WAIT_S
            log.warning("detached", gateway=self._link.address, reason=reason)
            self._hear(m.Disconnected())
            await asyncio.sleep(jittered(wait_s))
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            await self._link.turn()

    async def _attach(self) -> str:
        """One stream, from its first message to its end; why it ended."""
        call = self._link.attach()
        outgoing: asyncio.Queue[pb.AttachRequest] = asyncio.Queue()
        self._outgoing, self._dropped = outgoing, asyncio.get_running_loop().create_future()
        self._heard_s = time.monotonic()
        self._hear(m.Connected())
        tasks: list[asyncio.Future[str]] = [
            asyncio.ensure_future(self._write(call, outgoing)),
            asyncio.ensure_future(self._read(call)),
            asyncio.ensure_future(self._watch()),
            self._dropped,
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return _reason(done)
        finally:
            self._outgoing = self._dropped = None
            await self._readers.close()
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, call: Attach, outgoing: asyncio.Queue[pb.AttachRequest]) -> str:
        while True:
            message = await outgoing.get()
            await call.write(message)
            if message.HasField("log_chunk"):
                self._readers.sent()

    async def _read(self, call: Attach) -> str:
        async for answer in call:
            heard = wire.event(answer)
            if isinstance(heard, m.BeatAcked):
                self._heard_s = time.monotonic()
            if heard is not None:
                self._welcomed |= isinstance(heard, m.Welcomed)
                self._hear(heard)
            elif answer.HasField("log_read"):
                self._readers.take(answer.log_read, self.send)
        return "the gateway closed the stream"

    async def _watch(self) -> str:
        while (left_s := self._heard_s + UNHEARD_S - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_s)
        return f"no beat was acknowledged for {UNHEARD_S:.0f} s"


def _reason(done: Iterable[asyncio.Future[str]]) -> str:
    """Why a stream ended. Raises what is not weather."""
    reasons = []
    for task in done:
        error = task.exception()
        if error is None:
            reasons.append(task.result())
        elif isinstance(error, grpc.aio.AioRpcError):
            reasons.append(f"{error.code().name}: {error.details()}")
        elif isinstance(error, asyncio.InvalidStateError):
            reasons.append("the stream was closed while writing")
        elif isinstance(error, PortError):
            reasons.append(str(error))
        else:
            raise error
    return "; ".join(reasons)
