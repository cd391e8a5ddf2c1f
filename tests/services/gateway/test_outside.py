"""Submissions that programs write to the outside topic: what is taken, what is refused, and what a restart repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from services.gateway.outside import FRESH_MS, open_record
from services.gateway.refusal import Refusal
from services.gateway.settings import GatewaySettings
from services.runtime.ports import Outgoing
from services.runtime.reader import LogReader
from services.runtime.tokens import TokensError, account_key, read_key
from services.runtime.wiring import open_cell
from statemachines.cluster import Cluster
from tests.services.gateway.served import WITHIN_S, Leader, Served, as_, serving
from tests.services.gateway.world import KEY, submission
from tidemill.kafka.records import submission_proof, submission_record
from tidemill.v1 import job_service_pb2, outside_pb2

NOW_MS = 1_800_000_000_000
CI = "service:ci"


def record(
    *, key: str = "", principal: str = CI, at_ms: int = NOW_MS, request_id: str = "r1"
) -> bytes:
    signed = submission_record(
        key or account_key(KEY, principal),
        submission(request_id),
        principal=principal,
        at_ms=at_ms,
    )
    return signed[1]


def opened(stored: bytes) -> str:
    """The code of the refusal, "" when it is taken."""
    try:
        caller, request = open_record(stored, accounts={CI}, cell_key=KEY, now_ms=NOW_MS)
    except Refusal as refusal:
        return refusal.code
    assert (caller.principal, caller.roles, caller.attempt) == (CI, frozenset({"user"}), None)
    assert request.durable_only
    return ""


def altered(**fields: object) -> bytes:
    """An honest record of which something was changed on its way."""
    signed = outside_pb2.OutsideRequest.FromString(record())
    for name, value in fields.items():
        setattr(signed, name, value)
    return signed.SerializeToString()


@pytest.mark.parametrize(
    ("stored", "code"),
    [
        (record(), ""),
        (record(at_ms=NOW_MS - FRESH_MS), ""),
        (record(at_ms=NOW_MS - FRESH_MS - 1), "expired"),
        (record(at_ms=NOW_MS + 300_001), "expired"),
        (record(key=account_key(KEY, "service:other")), "forged"),
        (record(key="guess"), "forged"),
        (record(principal="service:other"), "account_not_allowed"),
        (record(principal="user:root"), "account_not_allowed"),
        (altered(body=submission("r2").SerializeToString()), "forged"),
        (altered(at_ms=NOW_MS + 1), "forged"),
        (altered(proof=""), "forged"),
        (altered(proof="\N{SNOWMAN}"), "forged"),
        (b"\xff\xff", "unreadable"),
        (b"", "account_not_allowed"),
    ],
    ids=[
        "honest", "as_old_as_may_be", "too_old", "too_new", "key_of_another", "a_guess", "another_account", "an_admin",
        "body_changed", "time_changed", "no_proof", "not_ascii", "garbage", "empty",
    ],
)  # fmt: skip
def test_a_record_is_taken_only_when_it_is_fresh_and_signed_by_an_account_that_may(
    stored: bytes, code: str
) -> None:
    assert opened(stored) == code


def test_what_is_signed_must_be_a_submission_that_can_be_told_from_others() -> None:
    key = account_key(KEY, CI)
    with pytest.raises(ValueError, match="request_id"):
        submission_record(key, submission(""), principal=CI)
    nameless = submission("").SerializeToString()
    for body, code in ((b"\xff", "unreadable"), (nameless, "no_request_id")):
        signed = outside_pb2.OutsideRequest(principal=CI, at_ms=NOW_MS, body=body)
        signed.proof = submission_proof(key, signed)
        assert opened(signed.SerializeToString()) == code


def test_keys_differ_by_account_and_cell_and_are_made_for_good_names_only() -> None:
    keys = {account_key(KEY, CI), account_key(KEY, "service:cd"), account_key(bytes(32), CI)}
    assert len(keys) == 3
    with pytest.raises(TokensError, match="is not like `service:ci`"):
        account_key(KEY, "ci\0")


def settings(directory: Path, *accounts: str) -> GatewaySettings:
    return GatewaySettings(
        directory=str(directory),
        listen="127.0.0.1:0",
        name="gw",
        drain_s=5.0,
        outside_accounts=accounts,
    )


def write(directory: Path, *values: bytes) -> None:
    with closing(open_cell(settings(directory))) as cell, closing(cell.publisher()) as publisher:
        publisher.publish([Outgoing("outside", b"", value) for value in values])


async def until(what: str, holds: Callable[[], bool]) -> None:
    ends = asyncio.get_running_loop().time() + WITHIN_S
    while not await asyncio.to_thread(holds):
        assert asyncio.get_running_loop().time() < ends, f"waited in vain for {what}"
        await asyncio.sleep(0.05)


def counted(served: Served) -> dict[str, float]:
    with urlopen(f"http://{served.monitor}/metrics") as answer:
        page = answer.read().decode()
    lines = [
        line for line in page.splitlines() if line.startswith("tidemill_gateway_outside_total")
    ]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


def admitted(directory: Path, count: int) -> bool:
    """Whether the log has admitted so many jobs."""
    with closing(open_cell(settings(directory))) as cell, closing(cell.event_log()) as log:
        cluster = Cluster("main")
        LogReader(log, cluster).read_to_end()
    return len(cluster.jobs) == count


async def jobs(served: Served) -> list[str]:
    listed = await served.jobs.ListJobs(job_service_pb2.ListJobsRequest(), **as_("root"))
    return [view.job for view in listed.jobs]


async def test_hostile_records_are_counted_and_an_honest_one_is_decided_once_through_restarts(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, settings=settings(tmp_path, CI)):
        pass  # Keys and topics are made.
    key = account_key(read_key(tmp_path / "keys" / "cell.key"), CI)
    _, honest = submission_record(key, submission("r1"), principal=CI)
    _, forged = submission_record("guess", submission("r2"), principal=CI)
    _, old = submission_record(key, submission("r3"), principal=CI, at_ms=1)
    _, wrong = submission_record(key, submission("r4", members=-1), principal=CI)
    write(tmp_path, honest, forged, b"\xff", old, wrong, honest)
    leader = Leader(tmp_path)
    try:
        wanted = {"taken": 2, "forged": 1, "unreadable": 1, "expired": 1, "invalid": 1}
        for _ in range(2):
            async with serving(tmp_path, settings=settings(tmp_path, CI)) as served:

                def all_read(served: Served = served) -> bool:
                    return sum(counted(served).values()) == 6

                await until("all six to be read", all_read)
                assert counted(served) == wanted
                await until("the job to be admitted", partial(admitted, tmp_path, 1))
                assert len(await jobs(served)) == 1
    finally:
        leader.stop()


async def test_nothing_is_read_unless_an_account_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=settings(tmp_path)) as served:
        assert "tidemill_gateway_outside_total{" not in str(counted(served))
        assert counted(served) == {}
