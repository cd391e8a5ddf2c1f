"""kill -9 of the gateway in the middle of a stream of submissions: nothing that was acknowledged is lost or done twice."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.runtime.shutdown import Shutdown
from services.runtime.tokens import prepare_keys, token_line
from tests.services.gateway.served import GRANTEES, WITHIN_S, Leader, Served, as_
from tests.services.gateway.world import submission
from tidemill.v1 import job_service_pb2 as jobs

JOBS = 1_500
KILLED_AFTER = 400
ALICE = as_("alices")


@asynccontextmanager
async def process(directory: Path) -> AsyncIterator[tuple[Served, asyncio.subprocess.Process]]:
    """A gateway as a process of its own, until killed."""
    address = directory / "gateway.addr"
    address.unlink(missing_ok=True)
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.gateway", "--directory", str(directory),
        "--listen", "127.0.0.1:0", "--log-level", "error",
    )  # fmt: skip
    try:
        async with asyncio.timeout(WITHIN_S):
            while not address.exists():
                assert gateway.returncode is None
                await asyncio.sleep(0.02)
        served = Served(directory, address.read_text().strip(), Shutdown())
        yield served, gateway
        await served.channel.close()
    finally:
        if gateway.returncode is None:
            gateway.kill()
        await gateway.wait()


async def killed(
    served: Served, gateway: asyncio.subprocess.Process, sent: list[jobs.SubmitJobsRequest]
) -> tuple[list[str], grpc.StatusCode]:
    """Stream them, and kill the gateway on the way: the jobs that were acknowledged, and how the stream ended."""
    acknowledged: list[str] = []
    dead = asyncio.Event()

    async def stream() -> AsyncIterator[jobs.SubmitJobsRequest]:
        for request in sent[:-1]:
            yield request
        await dead.wait()  # However fast the answers are, it has not sent all before.
        yield sent[-1]

    try:
        async for answer in served.jobs.SubmitJobs(stream(), **ALICE):
            acknowledged.append(answer.result.job)
            if len(acknowledged) == KILLED_AFTER:
                gateway.kill()
                dead.set()
    except grpc.aio.AioRpcError as error:
        return acknowledged, error.code()
    raise AssertionError("the stream outlived its gateway")


def requests() -> list[jobs.SubmitJobsRequest]:
    return [jobs.SubmitJobsRequest(submit=submission(f"r{i}")) for i in range(JOBS)]


async def all_jobs(served: Served) -> dict[str, int]:
    """Number by id, of all pages."""
    found: dict[str, int] = {}
    token = ""
    while True:
        page: Any = await served.jobs.ListJobs(
            jobs.ListJobsRequest(page_size=1_000, page_token=token), **ALICE
        )
        found.update({view.job: view.number for view in page.jobs})
        token = page.next_page_token
        if not token:
            return found


@pytest.mark.parametrize("durable_only", [False, True], ids=["decided", "durable"])
async def test_nothing_acknowledged_is_lost_and_nothing_is_done_twice(
    tmp_path: Path, leader: Leader, *, durable_only: bool
) -> None:
    keys = prepare_keys(tmp_path)
    lines = [token_line(token, grantee) for token, grantee in GRANTEES.items()]
    keys.tokens.write_text(keys.tokens.read_text() + "".join(lines))
    sent = requests()
    for request in sent:
        request.submit.durable_only = durable_only
    async with process(tmp_path) as (served, gateway):
        acknowledged, code = await killed(served, gateway, sent)
    async with process(tmp_path) as (served, _):
        again = [each.result async for each in served.jobs.SubmitJobs(iter(requests()), **ALICE)]
        found = await all_jobs(served)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert KILLED_AFTER <= len(acknowledged) < JOBS
    assert [answer.job for answer in again][: len(acknowledged)] == acknowledged
    assert {answer.status for answer in again} == {jobs.SUBMIT_STATUS_ADMITTED}
    assert (len(found), sorted(found.values())) == (JOBS, list(range(1, JOBS + 1)))
    assert leader.error is None
