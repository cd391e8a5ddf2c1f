"""NodeService over the core: one task reads an agent's messages, another writes what its outbox has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from services.gateway.driver import Driver
from services.gateway.gate import Context, caller
from services.gateway.refusal import Refusal, Status
from services.gateway.sessions import AttachStream
from services.gateway.validation import check
from services.runtime.ports import Blobs
from tidemill.v1 import node_service_pb2 as wire
from tidemill.v1 import node_service_pb2_grpc

# Blobs that are fetched at once. Kafka's are found by reading their topic, once after a start: others need threads too.
FETCHES_MAX: Final = 2


class NodeServicer(node_service_pb2_grpc.NodeServiceServicer):
    """Agents attach here."""

    def __init__(self, driver: Driver, blobs: Blobs) -> None:
        self._driver = driver
        self._core = driver.core
        self._blobs = blobs
        self._fetching = asyncio.Semaphore(FETCHES_MAX)

    async def Attach(
        self, request_iterator: AsyncIterator[wire.AttachRequest], _context: Context
    ) -> AsyncIterator[wire.AttachResponse]:
        stream = self._core.agents.open(caller())
        reader = asyncio.create_task(self._read(request_iterator, stream))
        try:
            async with aclosing(self._driver.drain(stream)) as messages:
                async for message in messages:
                    assert isinstance(message, wire.AttachResponse)
                    yield message
        finally:
            reader.cancel()
            self._core.agents.close(stream)
            self._driver.perform()

    async def _read(
        self, requests: AsyncIterator[wire.AttachRequest], stream: AttachStream
    ) -> None:
        """Until the agent has sent its last message, or one that ends the stream."""
        try:
            async for request in requests:
                self._core.agents.take(stream, request, self._driver.now())
                self._driver.perform()
        except Refusal as refusal:
            stream.cut(refusal)
        else:
            stream.end()
        self._driver.perform()

    async def GetBlob(
        self, request: wire.GetBlobRequest, _context: Context
    ) -> wire.GetBlobResponse:
        check(request)
        async with self._fetching:
            blob = await asyncio.to_thread(self._blobs.get, request.digest)
        if blob is None:
            raise Refusal(
                Status.NOT_FOUND,
                "unknown_blob",
                f"no blob {request.digest} is kept: it was deleted, so what it was needed for cannot start",
            )
        return wire.GetBlobResponse(blob=blob)
