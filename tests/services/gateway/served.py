"""A gateway over real gRPC on an ephemeral port, on an embedded cell in a temporary directory, led by a real scheduler."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import grpc
from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]
    BadRequest,
    ErrorInfo,
    RetryInfo,
)
from grpc_status import rpc_status

from services.gateway.service import ADDRESS_FILE, Service
from services.gateway.settings import GatewaySettings
from services.runtime.shutdown import Shutdown
from services.runtime.telemetry import Telemetry
from services.runtime.tokens import Grantee, Role, prepare_keys, token_line
from services.runtime.topics import LEADER_INPUTS
from services.runtime.wiring import Cell, open_cell
from services.scheduler.driver import Scheduler
from services.scheduler.phases import Ports, Rules
from tests.services.gateway.world import submission
from tidemill.v1 import (
    fleet_service_pb2_grpc,
    job_service_pb2_grpc,
    log_service_pb2_grpc,
    node_service_pb2_grpc,
    queue_service_pb2_grpc,
    training_service_pb2_grpc,
)
from tidemill.v1 import job_service_pb2 as jobs

WITHIN_S = 30.0
GRANTEES = {
    "alices": Grantee("user:alice", frozenset({Role.USER})),
    "bobs": Grantee("user:bob", frozenset({Role.USER})),
    "eyes": Grantee("user:eyes", frozenset({Role.VIEWER})),
    "root": Grantee("user:root", frozenset({Role.ADMIN})),
    "agents": Grantee("service:agent", frozenset({Role.NODE})),
}


class Nobody:
    """Looks on at a scheduler and says nothing."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments, **_named: None


class Leader:
    """A real scheduler in a thread."""

    def __init__(self, directory: Path) -> None:
        self._settings = GatewaySettings(directory=str(directory))
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Hand over and end; raises what went wrong."""
        self._stop.set()
        self._thread.join(WITHIN_S)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with closing(open_cell(self._settings)) as cell:
                self._lead(cell)
        except BaseException as error:  # noqa: BLE001 - raised again where it is stopped
            self.error = error

    def _lead(self, cell: Cell) -> None:
        ports = Ports(
            log=cell.event_log(),
            inputs=cell.inputs([topic.suffix for topic in LEADER_INPUTS]),
            snapshots=cell.snapshots(),
            leadership=cell.leadership("leader"),
            clock=cell.clock,
        )
        try:
            scheduler = Scheduler("main", ports, Rules("leader", "nonce"), Nobody())
            while not self._stop.is_set():
                scheduler.turn(0.05)
            scheduler.hand_over()
        finally:
            for port in (ports.leadership, ports.snapshots, ports.inputs, ports.log):
                port.close()


class Served:
    """One running gateway, and stubs for it."""

    def __init__(
        self, directory: Path, address: str, shutdown: Shutdown, *, monitor: str = ""
    ) -> None:
        self.directory = directory
        self.monitor = monitor
        self.address = address
        self.shutdown = shutdown
        self.channel = grpc.aio.insecure_channel(
            address, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self.jobs = job_service_pb2_grpc.JobServiceStub(self.channel)
        self.queues = queue_service_pb2_grpc.QueueServiceStub(self.channel)
        self.fleet = fleet_service_pb2_grpc.FleetServiceStub(self.channel)
        self.nodes = node_service_pb2_grpc.NodeServiceStub(self.channel)
        self.training = training_service_pb2_grpc.TrainingServiceStub(self.channel)
        self.log = log_service_pb2_grpc.LogServiceStub(self.channel)


def as_(token: str) -> dict[str, Any]:
    """Keyword arguments of a call with this token and a generous deadline."""
    return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": WITHIN_S}


@asynccontextmanager
async def serving(
    directory: Path, *, cell: Cell | None = None, settings: GatewaySettings | None = None
) -> AsyncIterator[Served]:
    """A gateway, from ready until asked to end. `cell` replaces its ports."""
    keys = prepare_keys(directory)
    if "user:alice" not in keys.tokens.read_text():
        lines = [token_line(token, grantee) for token, grantee in GRANTEES.items()]
        keys.tokens.write_text(keys.tokens.read_text() + "".join(lines))
    settings = settings or GatewaySettings(
        directory=str(directory), listen="127.0.0.1:0", name="gw", drain_s=5.0
    )
    (directory / ADDRESS_FILE).unlink(missing_ok=True)
    telemetry = Telemetry(settings, "gateway", stream=io.StringIO())
    shutdown = Shutdown()
    with closing(telemetry), closing(cell or open_cell(settings)) as opened:
        running = asyncio.create_task(Service(settings, telemetry, opened).run(shutdown))
        served = None
        try:
            address = await _address(directory / ADDRESS_FILE, running)
            served = Served(directory, address, shutdown, monitor=telemetry.address)
            yield served
        finally:
            shutdown.ask()
            await asyncio.wait_for(running, WITHIN_S)
            if served is not None:
                await served.channel.close()


async def admitted(served: Served, request_id: str = "r1", **rest: object) -> str:
    """The id of a job of alice that the leader has admitted."""
    request = submission(request_id, **rest)  # type: ignore[arg-type]
    answer = await served.jobs.SubmitJob(request, **as_("alices"))
    assert answer.status == jobs.SUBMIT_STATUS_ADMITTED
    return str(answer.job)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    """How a call that is refused ends."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("it was served")


async def read(call: Any) -> Any:
    """The next message of a stream, which has not ended."""
    message = await asyncio.wait_for(call.read(), WITHIN_S)
    assert message is not grpc.aio.EOF, "the stream has ended"
    return message


async def _address(path: Path, running: asyncio.Task[None]) -> str:
    async with asyncio.timeout(WITHIN_S):
        while (address := _line(path)) is None:
            if running.done():
                await running
            await asyncio.sleep(0.01)
    return address


def _line(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None


def details(error: grpc.aio.AioRpcError) -> tuple[str, Sequence[str], float]:
    """(reason code, fields at fault, seconds to wait before trying again or 0) of a refused call."""
    status = rpc_status.from_call(_Ended(error))
    assert status is not None, error
    reason, fields, retry_s = "", [], 0.0
    for detail in status.details:
        info, bad, retry = ErrorInfo(), BadRequest(), RetryInfo()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(bad):
            fields = [violation.field for violation in bad.field_violations]
        elif detail.Unpack(retry):
            retry_s = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, fields, retry_s


class _Ended(grpc.Call):  # type: ignore[misc,unused-ignore]
    """What rpc_status looks at of an error that grpc.aio raised."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self._error = error

    def initial_metadata(self) -> Any:
        return self._error.initial_metadata()

    def trailing_metadata(self) -> Any:
        return tuple(self._error.trailing_metadata())

    def code(self) -> grpc.StatusCode:
        return self._error.code()

    def details(self) -> str:
        return self._error.details() or ""

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> float:
        return 0.0

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: Any) -> bool:
        return False
