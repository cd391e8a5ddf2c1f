"""The gate: who is refused is refused unread, every open call is somebody's, and a revoked token ends its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.gateway.auth import METHODS
from services.gateway.gate import OPEN_CALLS_PER_PEER_MAX, RECOGNISED_FOR_MS, Calls, Gate, caller
from services.gateway.refusal import Refusal, Status
from services.runtime.tokens import Grantee, Role, token_digest
from tests.services.gateway.served import WITHIN_S, Served, as_, details, read
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs

ALICE, EYES = as_("alices"), as_("eyes")
GET = "/tidemill.v1.JobService/GetJob"
WATCH = "/tidemill.v1.JobService/WatchJobs"
SUBMITS = "/tidemill.v1.JobService/SubmitJobs"
PROBE = "/grpc.health.v1.Health/Watch"


class Aborted(grpc.aio.AbortError):  # type: ignore[misc,unused-ignore]
    """How a call ended."""


class Call:
    """The library's side of one call: what the client sends is put in, what it is sent comes out."""

    def __init__(self, *, token: str = "alices", peer: str = "ipv4:10.0.0.1:5") -> None:
        self.sent: asyncio.Queue[bytes | object] = asyncio.Queue()
        self.got: asyncio.Queue[Any] = asyncio.Queue()
        self.reading = asyncio.Event()
        self._token, self._peer = token, peer

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),)

    async def read(self) -> bytes | object:
        self.reading.set()
        return await self.sent.get()

    async def write(self, message: Any) -> None:
        self.got.put_nowait(message)

    async def abort(self, code: grpc.StatusCode, details: str, _trailers: object) -> None:
        raise Aborted(code, details)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.read()) is not grpc.aio.EOF:
            assert isinstance(message, bytes)
            yield message


class Door:
    """A gate whose time and tokens the test sets."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.ended: list[tuple[str, str]] = []
        self.tokens = {
            token_digest("alices"): Grantee("user:alice", frozenset({Role.USER})),
            token_digest("eyes"): Grantee("user:eyes", frozenset({Role.VIEWER})),
        }
        self.gate = Gate(
            lambda: self.tokens,
            cell_key=bytes(32),
            mono_ms=lambda: self.now_ms,
            counted=lambda method, status: self.ended.append((method, status)),
            refuse_all=lambda: None,
        )

    def calls(
        self, method: str, shape: Callable[..., Any], serve: Callable[..., Any]
    ) -> Callable[[Call], Coroutine[Any, Any, None]]:
        """What the library runs for a call of the method."""
        inner = shape(serve, jobs.GetJobRequest.FromString, jobs.GetJobResponse.SerializeToString)
        guarded: Any = self.gate.guard(inner, method)
        assert (guarded.request_streaming, guarded.response_streaming) == (True, True)
        return lambda call: guarded.stream_stream(call, call)

    def revoke(self) -> None:
        self.tokens.clear()
        self.now_ms += RECOGNISED_FOR_MS


async def echo(request: jobs.GetJobRequest, _context: object) -> str:
    return f"{caller().principal} {request.job}"


async def echoes(requests: AsyncIterator[jobs.GetJobRequest], _context: object) -> Any:
    async for request in requests:
        yield request.job


def asked(job: str) -> bytes:
    return jobs.GetJobRequest(job=job).SerializeToString()


# --- unread


@pytest.mark.parametrize("token", ["stranger", ""])
async def test_a_stranger_is_refused_unread(token: str) -> None:
    door, call = Door(), Call(token=token)
    with pytest.raises(Aborted) as ended:
        await door.calls(GET, grpc.unary_unary_rpc_method_handler, echo)(call)
    assert (ended.value.args[0], call.reading.is_set()) == (
        grpc.StatusCode.UNAUTHENTICATED,
        False,
    )
    assert (len(door.gate.calls), door.ended) == (0, [(GET, "UNAUTHENTICATED")])


async def test_a_caller_without_the_role_is_refused_unread() -> None:
    door, call = Door(), Call(token="eyes")
    with pytest.raises(Aborted) as ended:
        await door.calls(SUBMITS, grpc.stream_stream_rpc_method_handler, echoes)(call)
    assert (ended.value.args[0], call.reading.is_set()) == (
        grpc.StatusCode.PERMISSION_DENIED,
        False,
    )


@pytest.mark.parametrize("method", METHODS)
async def test_no_method_waits_for_the_message_of_a_stranger(served: Served, method: str) -> None:
    never_sent: Any = served.channel.stream_stream(method)
    call = never_sent(timeout=WITHIN_S)
    assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_call_without_a_message_is_told_so(served: Served) -> None:
    empty: Any = served.channel.stream_stream(GET)
    call = empty(iter(()), **EYES)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await read(call)
    assert details(ended.value)[0] == "not_a_message"


# --- shapes


async def test_each_shape_of_a_method_is_served() -> None:
    async def twice(request: jobs.GetJobRequest, _context: object) -> Any:
        yield request.job
        yield request.job

    async def by_itself(request: jobs.GetJobRequest, context: Call) -> None:
        await context.write(request.job)

    answers = {}
    for name, method, shape, serve in (
        ("unary", GET, grpc.unary_unary_rpc_method_handler, echo),
        ("down", WATCH, grpc.unary_stream_rpc_method_handler, twice),
        ("written", WATCH, grpc.unary_stream_rpc_method_handler, by_itself),
        ("both", SUBMITS, grpc.stream_stream_rpc_method_handler, echoes),
    ):
        door, call = Door(), Call()
        for message in (asked("j"), grpc.aio.EOF):
            call.sent.put_nowait(message)
        await door.calls(method, shape, serve)(call)
        answers[name] = [call.got.get_nowait() for _ in range(call.got.qsize())]
        assert door.ended == [(method, "OK")]
    assert answers == {
        "unary": ["user:alice j"],
        "down": ["j", "j"],
        "written": ["j"],
        "both": ["j"],
    }


# --- counted


async def test_a_message_that_never_ends_is_one_of_its_senders_calls() -> None:
    door, call = Door(), Call()
    serving = asyncio.create_task(door.calls(GET, grpc.unary_unary_rpc_method_handler, echo)(call))
    async with asyncio.timeout(WITHIN_S):
        await call.reading.wait()
    held = len(door.gate.calls)
    serving.cancel()
    await asyncio.wait([serving])
    assert (held, len(door.gate.calls), door.ended) == (1, 0, [(GET, "CANCELLED")])


def test_one_address_holds_only_so_many_calls_and_others_are_not_held_up() -> None:
    calls = Calls(per_peer=3, most=5)
    held = [calls.one_more(f"ipv4:10.0.0.1:{port}") for port in range(3)]
    for call in held:
        call.__enter__()
    with pytest.raises(Refusal, match="3 calls of this address"), calls.one_more("ipv4:10.0.0.1:9"):
        pass
    with calls.one_more("ipv4:10.0.0.2:9"), calls.one_more("ipv4:10.0.0.3:9"):
        with pytest.raises(Refusal, match="5 calls are open") as caught:
            calls.one_more("ipv4:10.0.0.4:9").__enter__()
        assert len(calls) == 5
    for call in held:
        call.__exit__(None, None, None)
    assert (caught.value.status, caught.value.code) == (
        Status.RESOURCE_EXHAUSTED,
        "too_many_calls",
    )
    assert (len(calls), calls._open) == (0, {})


async def test_probes_hold_a_bounded_number_of_calls_and_nobody_elses(served: Served) -> None:
    health: Any = health_pb2_grpc.HealthStub(served.channel)
    request = health_pb2.HealthCheckRequest()
    watches = [health.Watch(request, timeout=WITHIN_S) for _ in range(OPEN_CALLS_PER_PEER_MAX)]
    for watch in watches:
        assert (await read(watch)).status == health_pb2.HealthCheckResponse.SERVING
    one_more = health.Watch(request, timeout=WITHIN_S)
    code = await one_more.code()
    cell = await served.fleet.GetCell(fleet.GetCellRequest(), **EYES)
    for watch in watches:
        watch.cancel()
    assert (code, cell.cell.cell) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "main")


# --- revoked


async def test_what_a_revoked_token_sends_on_an_open_stream_is_not_taken() -> None:
    door, call = Door(), Call()
    serving = asyncio.create_task(
        door.calls(SUBMITS, grpc.stream_stream_rpc_method_handler, echoes)(call)
    )
    call.sent.put_nowait(asked("before"))
    async with asyncio.timeout(WITHIN_S):
        before = await call.got.get()
        door.revoke()
        call.sent.put_nowait(asked("after"))
        with pytest.raises(Aborted, match="revoked"):
            await serving
    assert (before, call.got.empty()) == ("before", True)


async def test_nothing_more_is_sent_to_a_revoked_token_and_the_stream_is_closed() -> None:
    door, call = Door(), Call()
    changes: asyncio.Queue[str] = asyncio.Queue()
    closed = asyncio.Event()

    async def watch(_request: jobs.GetJobRequest, _context: object) -> Any:
        try:
            while True:
                yield await changes.get()
        finally:
            closed.set()

    serving = asyncio.create_task(
        door.calls(WATCH, grpc.unary_stream_rpc_method_handler, watch)(call)
    )
    call.sent.put_nowait(asked("j"))
    changes.put_nowait("before")
    async with asyncio.timeout(WITHIN_S):
        before = await call.got.get()
        door.revoke()
        changes.put_nowait("after")
        with pytest.raises(Aborted, match="revoked"):
            await serving
    assert (before, call.got.empty(), closed.is_set()) == ("before", True, True)


async def test_a_token_that_allows_other_things_now_opens_its_stream_anew() -> None:
    door, call = Door(), Call()
    serving = asyncio.create_task(
        door.calls(SUBMITS, grpc.stream_stream_rpc_method_handler, echoes)(call)
    )
    call.sent.put_nowait(asked("before"))
    async with asyncio.timeout(WITHIN_S):
        await call.got.get()
        door.tokens = {token_digest("alices"): Grantee("user:al", frozenset({Role.USER}))}
        door.now_ms += RECOGNISED_FOR_MS
        call.sent.put_nowait(asked("after"))
        with pytest.raises(Aborted, match="has changed: call again"):
            await serving


async def test_a_token_that_is_kept_keeps_its_stream() -> None:
    door, call = Door(), Call()
    serving = asyncio.create_task(
        door.calls(SUBMITS, grpc.stream_stream_rpc_method_handler, echoes)(call)
    )
    async with asyncio.timeout(WITHIN_S):
        for number in range(5):
            door.now_ms += RECOGNISED_FOR_MS
            call.sent.put_nowait(asked(str(number)))
            assert await call.got.get() == str(number)
        call.sent.put_nowait(grpc.aio.EOF)
        await serving
    assert door.ended == [(SUBMITS, "OK")]
