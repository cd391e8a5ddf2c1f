"""The gate before every method: limits, then authentication, then permission, then parsing. In that order.

By construction a method that is not in auth.METHODS is refused whatever the servicers offer, and bytes of a stranger
are never parsed. This must never log a token.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from services.gateway.auth import OPEN_METHODS, Caller, authenticate, authorise
from services.gateway.refusal import Refusal, Status
from services.gateway.servicers.status import abort
from services.runtime.tokens import Grantee

# A submission with its launch, or a page of a watch; larger messages are refused unread by the transport.
RECEIVE_BYTES_MAX: Final = 4 << 20
SEND_BYTES_MAX: Final = 64 << 20
METADATA_BYTES_MAX: Final = 16 << 10
STREAMS_PER_CONNECTION_MAX: Final = 1_000
CALLS_PER_PEER_MAX: Final = 4_000
CALLS_MAX: Final = 16_000

OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", SEND_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # A second gateway on the same port is a mistake, not a share of the load.
    ("grpc.so_reuseport", 0),
    # A peer that is gone without a word is noticed within half a minute, behind any middlebox.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Clients may ping every 10 s, idle or not, as ours do; faster ones are sent away.
    ("grpc.http2.min_ping_interval_without_data_ms", 9_000),
    ("grpc.http2.max_ping_strikes", 3),
)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Counted: TypeAlias = Callable[[str, str], None]

_CALLER: Final[ContextVar[Caller]] = ContextVar("caller")


def caller() -> Caller:
    """Who makes the call that is being served."""
    return _CALLER.get()


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """`grantees` gives the tokens as they are now; `counted` is told (method, status) of each call that ended."""

    def __init__(
        self,
        grantees: Callable[[], Mapping[str, Grantee]],
        *,
        cell_key: bytes,
        counted: Counted,
        refuse_all: Callable[[], Refusal | None],
    ) -> None:
        self._grantees = grantees
        self._cell_key = cell_key
        self._counted = counted
        self._refuse_all = refuse_all
        self._calls: dict[str, int] = {}
        self._guarded: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's handler behind the gate: it is given raw bytes, and parses them once the caller may call it."""
        method = handler_call_details.method
        guarded = self._guarded.get(method)
        if guarded is not None:
            return guarded
        handler = await continuation(handler_call_details)
        if handler is None or method in OPEN_METHODS:
            return handler
        guarded = self._guarded[method] = _Guarded(self, handler, method).handler()
        return guarded

    def admit(self, method: str, authorization: str) -> Caller:
        """The caller, if it may call the method now; raises Refusal."""
        refusal = self._refuse_all()
        if refusal is not None:
            raise refusal
        found = authenticate(authorization, self._grantees(), self._cell_key)
        authorise(found, method)
        return found

    @contextlib.contextmanager
    def counting(self, peer: str) -> Iterator[None]:
        """Hold one of the peer's calls; raises Refusal when it has too many."""
        host = peer.rpartition(":")[0]
        calls = self._calls.get(host, 0)
        if calls >= CALLS_PER_PEER_MAX:
            raise Refusal(
                Status.RESOURCE_EXHAUSTED,
                "too_many_calls",
                f"{CALLS_PER_PEER_MAX} calls of this address are open: end some, or use a stream",
                retry_after_ms=1_000,
            )
        self._calls[host] = calls + 1
        try:
            yield
        finally:
            self._calls[host] -= 1
            if not self._calls[host]:
                del self._calls[host]

    def count(self, method: str, status: str) -> None:
        """A call ended."""
        self._counted(method, status)


class _Guarded:
    """One method behind the gate."""

    def __init__(self, gate: Gate, inner: Any, method: str) -> None:
        self._gate = gate
        self._inner = inner
        self._method = method

    def handler(self) -> Handler:
        """A handler of the same shape that takes raw bytes."""
        inner = self._inner
        to_bytes = inner.response_serializer
        if inner.request_streaming and inner.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream_stream, None, to_bytes)
        if inner.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._unary_stream, None, to_bytes)
        assert not inner.request_streaming, "no method of ours streams requests alone"
        return grpc.unary_unary_rpc_method_handler(self._unary_unary, None, to_bytes)

    async def _unary_unary(self, raw: bytes, context: Context) -> Any:
        with self._ending():
            try:
                with self._gate.counting(context.peer()):
                    self._admit(context)
                    return await self._inner.unary_unary(self._parse(raw), context)
            except Refusal as refusal:
                await self._refuse(context, refusal)

    async def _unary_stream(self, raw: bytes, context: Context) -> AsyncIterator[Message]:
        with self._ending():
            try:
                with self._gate.counting(context.peer()):
                    self._admit(context)
                    async for response in self._inner.unary_stream(self._parse(raw), context):
                        yield response
            except Refusal as refusal:
                await self._refuse(context, refusal)

    async def _stream_stream(
        self, raw: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[Message]:
        with self._ending():
            try:
                with self._gate.counting(context.peer()):
                    self._admit(context)
                    requests = (self._parse(each) async for each in raw)
                    async for response in self._inner.stream_stream(requests, context):
                        yield response
            except Refusal as refusal:
                await self._refuse(context, refusal)

    def _admit(self, context: Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        authorization = str(metadata.get("authorization", ""))
        _CALLER.set(self._gate.admit(self._method, authorization))

    def _parse(self, raw: bytes) -> Any:
        parse = self._inner.request_deserializer
        assert parse is not None, "every method of ours takes a message"
        try:
            return parse(raw)
        except DecodeError:
            raise Refusal(
                Status.INVALID_ARGUMENT,
                "not_a_message",
                f"the bytes are not a request of {self._method.rpartition('/')[2]}: "
                "use a client of the same protocol version",
            ) from None

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Count how the call ended; a refusal has counted itself before it is raised as an abort."""
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except BaseException as error:
            cancelled = isinstance(error, GeneratorExit | asyncio.CancelledError)
            self._gate.count(self._method, "CANCELLED" if cancelled else "UNKNOWN")
            raise
        else:
            self._gate.count(self._method, "OK")

    async def _refuse(self, context: Context, refusal: Refusal) -> None:
        self._gate.count(self._method, refusal.status.value)
        await abort(context, refusal)
