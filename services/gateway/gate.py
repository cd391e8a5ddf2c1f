"""The gate before every method: limits, then authentication, then permission, then reading. In that order.

To the library each method is one that streams both ways: only for those is the handler called before a message came,
so who is refused is refused unread, and a message that never ends is one of its sender's calls. By construction a
method that is not in auth.METHODS is refused whatever the servicers offer. This must never log a token.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
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
# Of methods that need no token, whoever calls them.
OPEN_CALLS_PER_PEER_MAX: Final = 100
OPEN_CALLS_MAX: Final = 1_000
# A stream ends this long after its token was revoked at the latest, if anything still travels on it.
RECOGNISED_FOR_MS: Final = 1_000

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


class Calls:
    """Calls that are open, of each address and of all."""

    def __init__(self, *, per_peer: int, most: int) -> None:
        self._per_peer = per_peer
        self._most = most
        self._open: dict[str, int] = {}
        self._all = 0

    @contextlib.contextmanager
    def one_more(self, peer: str) -> Iterator[None]:
        """Hold one of the peer's calls; raises Refusal when there are too many."""
        host = peer.rpartition(":")[0]
        held = self._open.get(host, 0)
        if held >= self._per_peer:
            raise _too_many(f"{self._per_peer} calls of this address")
        if self._all >= self._most:
            raise _too_many(f"{self._most} calls")
        self._open[host] = held + 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._open[host] -= 1
            if not self._open[host]:
                del self._open[host]

    def __len__(self) -> int:
        return self._all


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """`grantees` gives the tokens as they are now; `counted` is told (method, status) of each call that ended."""

    def __init__(
        self,
        grantees: Callable[[], Mapping[str, Grantee]],
        *,
        cell_key: bytes,
        mono_ms: Callable[[], int],
        counted: Counted,
        refuse_all: Callable[[], Refusal | None],
    ) -> None:
        self.calls = Calls(per_peer=CALLS_PER_PEER_MAX, most=CALLS_MAX)
        self.open_calls = Calls(per_peer=OPEN_CALLS_PER_PEER_MAX, most=OPEN_CALLS_MAX)
        self.mono_ms = mono_ms
        self._grantees = grantees
        self._cell_key = cell_key
        self._counted = counted
        self._refuse_all = refuse_all
        self._guarded: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's handler behind the gate."""
        method = handler_call_details.method
        guarded = self._guarded.get(method)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            guarded = self._guarded[method] = self.guard(handler, method)
        return guarded

    def guard(self, handler: Handler, method: str) -> Handler:
        """A handler that is called at once, and reads and parses once the caller may call."""
        guarded = _Guarded(self, handler, method)
        return grpc.stream_stream_rpc_method_handler(
            guarded.serve, None, handler.response_serializer
        )

    def admit(self, method: str, authorization: str) -> Caller:
        """The caller, if it may call the method now; raises Refusal."""
        refusal = self._refuse_all()
        if refusal is not None:
            raise refusal
        return self.recognise(method, authorization)

    def recognise(self, method: str, authorization: str) -> Caller:
        """Who shows this, by the tokens as they are now; raises Refusal when it may not call the method."""
        found = authenticate(authorization, self._grantees(), self._cell_key)
        authorise(found, method)
        return found

    def count(self, method: str, status: str) -> None:
        """A call ended."""
        self._counted(method, status)


class _Pass:
    """What a call was admitted by. It is looked at again while the call lasts: a token may be revoked."""

    def __init__(self, gate: Gate, method: str, authorization: str) -> None:
        self._gate = gate
        self._method = method
        self._authorization = authorization
        self.caller = gate.admit(method, authorization)
        self._good_until_ms = gate.mono_ms() + RECOGNISED_FOR_MS

    def check(self) -> None:
        """Raises Refusal when it would not be given any more, or to another caller."""
        now_ms = self._gate.mono_ms()
        if now_ms < self._good_until_ms:
            return
        if self._gate.recognise(self._method, self._authorization) != self.caller:
            raise Refusal(
                Status.UNAUTHENTICATED,
                "token_changed",
                "what this token allows has changed: call again",
            )
        self._good_until_ms = now_ms + RECOGNISED_FOR_MS


class _Guarded:
    """One method behind the gate."""

    def __init__(self, gate: Gate, inner: Any, method: str) -> None:
        self._gate = gate
        self._inner = inner
        self._method = method

    async def serve(self, raw: AsyncIterator[bytes], context: Context) -> None:
        """One call, whatever its shape."""
        with self._ending():
            try:
                if self._method in OPEN_METHODS:
                    with self._gate.open_calls.one_more(context.peer()):
                        await self._call(raw, context, _unchecked)
                else:
                    with self._gate.calls.one_more(context.peer()):
                        await self._call(raw, context, self._admit(context))
            except Refusal as refusal:
                self._gate.count(self._method, refusal.status.value)
                await abort(context, refusal)

    def _admit(self, context: Context) -> Callable[[], None]:
        """What checks later that it is still admitted; raises Refusal when it is not now."""
        metadata = dict(context.invocation_metadata() or ())
        admitted = _Pass(self._gate, self._method, str(metadata.get("authorization", "")))
        _CALLER.set(admitted.caller)
        return admitted.check

    async def _call(
        self, raw: AsyncIterator[bytes], context: Context, check: Callable[[], None]
    ) -> None:
        inner = self._inner
        if inner.request_streaming:
            assert inner.response_streaming, "no method of ours streams requests alone"
            responses = inner.stream_stream(self._parsed(raw, check), context)
        elif inner.response_streaming:
            responses = inner.unary_stream(await self._only(context), context)
        else:
            await context.write(await inner.unary_unary(await self._only(context), context))
            return
        if not isinstance(responses, AsyncGenerator):
            await responses  # It writes by itself.
            return
        async with aclosing(responses):
            async for response in responses:
                check()
                await context.write(response)

    async def _parsed(
        self, raw: AsyncIterator[bytes], check: Callable[[], None]
    ) -> AsyncIterator[Message]:
        async for each in raw:
            check()
            yield self._parse(each)

    async def _only(self, context: Context) -> Message:
        """The one request of a call that has one."""
        raw = await context.read()
        if raw is grpc.aio.EOF:
            raise self._not_a_message("there is none")
        assert isinstance(raw, bytes)
        return self._parse(raw)

    def _parse(self, raw: bytes) -> Message:
        parse = self._inner.request_deserializer
        assert parse is not None, "every method of ours takes a message"
        try:
            message: Message = parse(raw)
        except DecodeError:
            raise self._not_a_message("the bytes are none") from None
        return message

    def _not_a_message(self, why: str) -> Refusal:
        return Refusal(
            Status.INVALID_ARGUMENT,
            "not_a_message",
            f"a call of {self._method.rpartition('/')[2]} takes a request, and {why}: "
            "use a client of the same protocol version",
        )

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Count how the call ended; a refusal has counted itself before it is raised as an abort."""
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            self._gate.count(self._method, "CANCELLED" if cancelled else "UNKNOWN")
            raise
        else:
            self._gate.count(self._method, "OK")


def _unchecked() -> None:
    """A call that needs no token has none to be revoked."""


def _too_many(held: str) -> Refusal:
    return Refusal(
        Status.RESOURCE_EXHAUSTED,
        "too_many_calls",
        f"{held} are open already: end some, or use a stream",
        retry_after_ms=1_000,
    )
