"""The agent's way to its cell: channels to the gateways it was given, one at a time. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from services.runtime.ports import PortError
from tidemill.v1 import common_pb2, node_service_pb2_grpc
from tidemill.v1 import node_service_pb2 as pb

CALL_S: Final = 10.0
# A peer that vanished without a word is noticed after 10 s + 5 s.
OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    # Our own waits decide when to try again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)
Attach = grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]


class GatewayError(PortError):
    """A gateway cannot be reached, or refuses the call."""


class LaunchGoneError(Exception):
    """What a job runs was deleted, or is not what its digest says."""


class Link:
    """One open channel; `turn` moves to the next gateway of the list.

    `addresses` is asked again at each turn: a gateway may come back elsewhere. `ca` is a file with the CA certificates
    to trust; empty: plain text.
    """

    def __init__(
        self, addresses: Callable[[], Sequence[str]], *, token: str = "", ca: str = ""
    ) -> None:
        self._addresses = addresses
        self._ca = ca
        self._turn = 0
        self._channel: grpc.aio.Channel | None = None
        self.address = addresses()[0]
        self._metadata: Sequence[tuple[str, str]] = (
            (("authorization", f"Bearer {token}"),) if token else ()
        )

    @property
    def url(self) -> str:
        """The gateway of this turn, as clients name it."""
        return f"tls://{self.address}" if self._ca else self.address

    async def turn(self) -> None:
        """Use the next gateway from now on."""
        await self.close()
        self._turn += 1
        with contextlib.suppress(
            PortError
        ):  # Not named at the moment: the one before may come back.
            addresses = self._addresses()
            self.address = addresses[self._turn % len(addresses)]

    async def close(self) -> None:
        """Give back the channel; calls on it end."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def attach(self) -> Attach:
        """A new stream."""
        return self._stub().Attach(metadata=self._metadata)

    async def launch(self, digest: str) -> common_pb2.Launch:
        """What a job runs. Raises GatewayError to be tried again, LaunchGoneError for good."""
        try:
            request = pb.GetBlobRequest(digest=digest)
            answer = await self._stub().GetBlob(request, metadata=self._metadata, timeout=CALL_S)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not we were cancelled: `turn` closed the channel, which cancels the calls on it.
            raise GatewayError(f"{self.address}: the channel was closed") from None
        except grpc.aio.AioRpcError as error:
            if error.code() in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT}:
                raise LaunchGoneError(
                    f"what the job runs is gone ({error.details()}); submit it again"
                ) from error
            raise GatewayError(f"{self.address}: {error.code().name} {error.details()}") from error
        if hashlib.sha256(answer.blob).hexdigest() != digest:
            raise LaunchGoneError("what the job runs was damaged in its store; submit it again")
        try:
            return common_pb2.Launch.FromString(answer.blob)
        except DecodeError as error:
            raise LaunchGoneError("what the job runs is no launch; submit it again") from error

    def _stub(self) -> node_service_pb2_grpc.NodeServiceAsyncStub:
        if self._channel is None:
            self._channel = self._open()
        return node_service_pb2_grpc.NodeServiceStub(self._channel)

    def _open(self) -> grpc.aio.Channel:
        if not self._ca:
            return grpc.aio.insecure_channel(self.address, options=OPTIONS)
        trusted = grpc.ssl_channel_credentials(Path(self._ca).read_bytes())
        return grpc.aio.secure_channel(self.address, trusted, options=OPTIONS)
