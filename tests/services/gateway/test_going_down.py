"""A gateway that goes down, comes up, or has no log to write to: what callers are told, over real gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.gateway.service import forget_address, write_address
from services.gateway.settings import GatewaySettings
from services.runtime.ports import Outgoing, PortError, Publisher
from services.runtime.settings import SettingsError
from services.runtime.tokens import prepare_keys
from services.runtime.wiring import EmbeddedCell
from tests.services.gateway.served import (
    WITHIN_S,
    Leader,
    Served,
    admitted,
    as_,
    details,
    read,
    refused,
    serving,
)
from tests.services.gateway.world import submission
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import log_service_pb2 as log

ALICE, BOB, EYES, ROOT, AGENT = (as_(name) for name in ("alices", "bobs", "eyes", "root", "agents"))


# --- going down, coming up


async def test_a_gateway_that_goes_down_ends_streams_with_a_reason_to_come_back(
    tmp_path: Path, leader: Leader
) -> None:
    async with serving(tmp_path) as served:
        watch = served.jobs.WatchJobs(jobs.WatchJobsRequest(), **EYES)
        assert (await read(watch)).current
        served.shutdown.ask()
        error = await refused(watch.read())
    reason, _, retry_s = details(error)
    assert (error.code(), reason, retry_s) == (
        grpc.StatusCode.UNAVAILABLE,
        "gateway_draining",
        1.0,
    )
    assert leader.error is None


async def test_a_gateway_that_goes_down_ends_those_that_wait_for_the_fold(
    tmp_path: Path, leader: Leader
) -> None:
    async with serving(tmp_path) as served:
        job = await admitted(served)
        entries = log.ReadEntriesRequest(last=1, follow=True)
        tail = served.log.ReadEntries(entries, **EYES)
        await read(tail)
        output = served.jobs.ReadLogs(jobs.ReadLogsRequest(job=job, follow=True), **ALICE)
        reading = asyncio.create_task(output.read())
        await served.fleet.GetCell(fleet.GetCellRequest(), **EYES)  # Calls come in order.
        served.shutdown.ask()
        errors = [await refused(rest_of(tail)), await refused(reading)]
    assert [details(error)[0] for error in errors] == ["gateway_draining"] * 2
    assert leader.error is None


async def rest_of(call: Any) -> None:
    while True:
        await read(call)


async def test_the_address_is_in_its_file_while_there_is_one_to_call(
    tmp_path: Path, leader: Leader
) -> None:
    async with serving(tmp_path) as served:
        during = (tmp_path / "gateway.addr").read_text()
    assert (during, (tmp_path / "gateway.addr").exists()) == (served.address + "\n", False)
    assert leader.error is None


def test_the_address_of_another_gateway_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "gateway.addr"
    write_address(path, "127.0.0.1:2")
    forget_address(path, "127.0.0.1:1")
    assert path.read_text() == "127.0.0.1:2\n"


async def test_a_second_gateway_on_the_same_port_says_so(served: Served, tmp_path: Path) -> None:
    settings = GatewaySettings(directory=str(tmp_path), listen=served.address)
    with pytest.raises(OSError, match="another gateway"):
        async with serving(tmp_path, settings=settings):
            pass


async def test_a_token_that_is_taken_out_of_the_file_stops_working(served: Served) -> None:
    tokens = prepare_keys(served.directory).tokens
    before = await served.fleet.GetCell(fleet.GetCellRequest(), **BOB)
    kept = [line for line in tokens.read_text().splitlines() if "user:bob" not in line]
    tokens.write_text("\n".join(kept))
    async with asyncio.timeout(WITHIN_S):
        while (code := await _code_of_bobs_call(served)) is grpc.StatusCode.OK:
            pass
    assert (before.cell.cell, code) == ("main", grpc.StatusCode.UNAUTHENTICATED)


async def _code_of_bobs_call(served: Served) -> grpc.StatusCode:
    call = served.fleet.GetCell(fleet.GetCellRequest(), **BOB)
    return await call.code()


async def test_a_gateway_does_not_start_on_a_tokens_file_that_is_broken(tmp_path: Path) -> None:
    prepare_keys(tmp_path).tokens.write_text("user:alice what is this\n")
    with pytest.raises(SettingsError, match="line 1"):
        async with serving(tmp_path):
            pass


# --- weather


class Broken:
    """A publisher that fails, or never comes back, while it is told to."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.error: PortError | None = None

    def publish(self, records: list[Outgoing]) -> None:
        if self.error is not None:
            raise self.error
        self._publisher.publish(records)

    def close(self) -> None:
        self._publisher.close()


class BrokenCell(EmbeddedCell):
    """An embedded cell whose publisher can be broken."""

    def __init__(self, settings: GatewaySettings) -> None:
        super().__init__(settings)
        self.broken = Broken(super().publisher())

    def publisher(self) -> Publisher:
        return self.broken  # type: ignore[return-value]


async def test_a_log_that_cannot_be_written_is_a_retryable_error_and_passes(
    tmp_path: Path, leader: Leader
) -> None:
    settings = GatewaySettings(directory=str(tmp_path), listen="127.0.0.1:0")
    cell = BrokenCell(settings)
    async with serving(tmp_path, cell=cell, settings=settings) as served:
        cell.broken.error = PortError("the broker is away")
        error = await refused(served.jobs.SubmitJob(submission("r1"), **ALICE))
        ended = served.jobs.SubmitJobs(
            iter([jobs.SubmitJobsRequest(submit=submission("r2"))]), **ALICE
        )
        stream = await refused(ended.read())
        cell.broken.error = None
        job = await admitted(served, "r1")
    reason, _, retry_s = details(error)
    assert (error.code(), reason, retry_s > 0) == (
        grpc.StatusCode.UNAVAILABLE,
        "log_unavailable",
        True,
    )
    assert "'r1'" in (error.details() or "")
    assert (stream.code(), bool(job), leader.error) == (grpc.StatusCode.UNAVAILABLE, True, None)
