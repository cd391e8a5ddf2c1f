"""A gateway for tests of the agent: a real gRPC server that records what an agent says and answers as it is told."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from services.runtime.desired import full_set
from tidemill.v1 import common_pb2, node_service_pb2_grpc
from tidemill.v1 import node_service_pb2 as pb


class FakeGateway(node_service_pb2_grpc.NodeServiceServicer):
    """One node's gateway. `heard` is everything it was told, oldest first."""

    def __init__(self) -> None:
        self.heard: list[pb.AttachRequest] = []
        self.blobs: dict[str, bytes] = {}
        self.orders: dict[str, pb.RunOrder] = {}
        self.offset = 0
        self.ack_beats = True
        self.ack_reports = True
        self.refuse_below = 0
        # Calls for blobs get no answer.
        self.hold_blobs = False
        self.blob_asked = asyncio.Event()
        self.port = 0
        self._streams: list[asyncio.Queue[pb.AttachResponse | None]] = []
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    # --- for tests

    async def start(self, port: int = 0) -> None:
        self._server = grpc.aio.server()
        node_service_pb2_grpc.add_NodeServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def until(self, met: Callable[[], Any], within_s: float = 30.0) -> None:
        """Wait until a condition on what was heard is met."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: bool(met())), within_s)

    def blob(self, *argv: str, **fields: Any) -> str:
        stored = common_pb2.Launch(argv=argv, **fields).SerializeToString()
        digest = hashlib.sha256(stored).hexdigest()
        self.blobs[digest] = stored
        return digest

    def order(self, run: str, launch: str, **fields: Any) -> None:
        job, attempt, rank = run.rsplit(".", 2)
        defaults = {"action": pb.RUN_ACTION_RUN, "members": 1, "world_size": 1, "grace_ms": 5_000}
        self.orders[run] = pb.RunOrder(
            run=run,
            job=job,
            attempt=int(attempt),
            rank=int(rank),
            launch=launch,
            **defaults | fields,
        )

    def send_set(self, **at: int) -> None:
        """Give the whole set as it is now."""
        self.offset = at.get("offset", self.offset + 1)
        desired = full_set("n1", at.get("term", 1), self.offset, dict(sorted(self.orders.items())))
        self.say(pb.AttachResponse(desired=desired))

    def say(self, answer: pb.AttachResponse) -> None:
        self._streams[-1].put_nowait(answer)

    def cut(self) -> None:
        """End the newest stream."""
        self._streams[-1].put_nowait(None)

    def reports(self, kind: str) -> list[Any]:
        """Reports of a kind, each once."""
        seen: dict[tuple[int, int], Any] = {}
        for message in self.heard:
            if message.HasField("report") and message.report.WhichOneof("kind") == kind:
                key = (message.report.incarnation, message.report.sequence)
                seen[key] = getattr(message.report, kind)
        return list(seen.values())

    def messages(self, kind: str) -> list[Any]:
        return [getattr(each, kind) for each in self.heard if each.WhichOneof("kind") == kind]

    # --- NodeService

    async def Attach(
        self, requests: AsyncIterator[pb.AttachRequest], context: Any
    ) -> AsyncIterator[pb.AttachResponse]:
        answers: asyncio.Queue[pb.AttachResponse | None] = asyncio.Queue()
        self._streams.append(answers)
        reading = asyncio.ensure_future(self._hear(requests, answers))
        try:
            while (answer := await answers.get()) is not None:
                yield answer
        finally:
            reading.cancel()

    async def GetBlob(self, request: pb.GetBlobRequest, context: Any) -> pb.GetBlobResponse:
        self.blob_asked.set()
        if self.hold_blobs:
            await asyncio.Event().wait()
        if request.digest not in self.blobs:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such blob")
        return pb.GetBlobResponse(blob=self.blobs[request.digest])

    async def _hear(
        self, requests: AsyncIterator[pb.AttachRequest], answers: asyncio.Queue[Any]
    ) -> None:
        async for message in requests:
            for answer in self._answers(message):
                answers.put_nowait(answer)
            async with self._changed:
                self.heard.append(message)
                self._changed.notify_all()

    def _answers(self, message: pb.AttachRequest) -> list[pb.AttachResponse]:
        match message.WhichOneof("kind"):
            case "attach" if message.attach.incarnation < self.refuse_below:
                refused = pb.NodeRefused(node="n1", code="over", next_incarnation=self.refuse_below)
                return [pb.AttachResponse(refused=refused)]
            case "attach":
                welcome = pb.NodeWelcome(node="n1", cell="c", beat_every_ms=200)
                return [pb.AttachResponse(welcome=welcome)]
            case "beat" if self.ack_beats:
                ack = pb.BeatAck(node="n1", sequence=message.beat.sequence)
                return [pb.AttachResponse(beat_ack=ack)]
            case "report" if self.ack_reports:
                done = pb.ReportAck(node="n1", sequence=message.report.sequence)
                return [pb.AttachResponse(report_ack=done)]
            case _:
                return []
