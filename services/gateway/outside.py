"""Submissions that programs write to `<cell>.outside` themselves: checked here, and asked for as if they had called.

Nothing remembers how far it read: the topic is kept for an hour, is read from its beginning, and each submission is
decided once by its request id, for which answers are kept for longer than a record is fresh. So a restart repeats only
questions, and an old record cannot be sent again. Off unless the operator names accounts. It never trusts a record for
the topic that it came by, and the leader never sees one.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from services.gateway.auth import Caller
from services.gateway.driver import Driver
from services.gateway.effects import Now
from services.gateway.refusal import Refusal, Status
from services.runtime import topics
from services.runtime.ports import Clock, InputGapError, InputRecord, Inputs, PortError
from services.runtime.tokens import Role, account_key
from tidemill.kafka.records import submission_proof
from tidemill.v1 import job_service_pb2, outside_pb2

# Shorter than answers are kept (24 h), and as long as the topic keeps records.
FRESH_MS: Final = 3_600_000
_AHEAD_MS: Final = 300_000
_RECORDS_PER_READ: Final = 100
_READ_S: Final = 1.0
_RETRY_S: Final = 1.0


def open_record(
    stored: bytes, *, accounts: Collection[str], cell_key: bytes, now_ms: int
) -> tuple[Caller, job_service_pb2.SubmitJobRequest]:
    """Who submits what; raises Refusal for what is forged, old, or not allowed."""
    try:
        signed = outside_pb2.OutsideRequest.FromString(stored)
    except DecodeError as error:
        raise _refused("unreadable", f"not an OutsideRequest: {error}") from error
    if signed.principal not in accounts:
        raise _refused(
            "account_not_allowed",
            f"{signed.principal!r} is not among the outside_accounts of this gateway",
        )
    key = account_key(cell_key, signed.principal)
    if not hmac.compare_digest(submission_proof(key, signed).encode(), signed.proof.encode()):
        raise _refused(
            "forged", f"the proof is not of this record and the key of {signed.principal}"
        )
    if not -_AHEAD_MS <= now_ms - signed.at_ms <= FRESH_MS:
        raise _refused(
            "expired",
            f"signed {(now_ms - signed.at_ms) // 1000} s ago by its own clock; sign it anew, and set that clock",
        )
    try:
        request = job_service_pb2.SubmitJobRequest.FromString(signed.body)
    except DecodeError as error:
        raise _refused("unreadable", f"the body is not a SubmitJobRequest: {error}") from error
    if not request.request_id:
        raise _refused(
            "no_request_id", "without a request_id it could be decided twice; set one and sign anew"
        )
    request.durable_only = True
    return Caller(signed.principal, "outside", frozenset({Role.USER.value})), request


def _refused(code: str, message: str) -> Refusal:
    return Refusal(Status.PERMISSION_DENIED, code, message)


class Outside:
    """Reads the topic for one gateway, until cancelled. `told` learns the code of each record, "taken" when it was."""

    def __init__(
        self,
        driver: Driver,
        inputs: Inputs,
        clock: Clock,
        *,
        accounts: Sequence[str],
        cell_key: bytes,
        told: Callable[[str, str], None],
    ) -> None:
        self._driver, self._inputs, self._clock = driver, inputs, clock
        self._accounts, self._cell_key = frozenset(accounts), cell_key
        self._told = told
        self._positions: dict[tuple[str, int], int] = {}

    async def run(self) -> None:
        """Read on and on. Weather is waited for; a bug is raised."""
        await self._driver.caught_up.wait()  # What was decided before is known.
        while True:
            try:
                records = await asyncio.to_thread(self._read)
                await asyncio.gather(*map(self._take, records))
                for record in records:
                    self._positions[record.topic, record.partition] = record.offset + 1
            except PortError as error:
                self._told("weather", str(error))
                await asyncio.sleep(_RETRY_S)

    def _read(self) -> Sequence[InputRecord]:
        topic = topics.OUTSIDE.suffix
        for partition in range(self._inputs.partitions(topic)):
            self._positions.setdefault((topic, partition), 0)
        try:
            return self._inputs.read(self._positions, limit=_RECORDS_PER_READ, timeout_s=_READ_S)
        except InputGapError as gap:  # What retention took is too old to be taken by us.
            self._positions[gap.topic, gap.partition] = gap.oldest
            return ()

    async def _take(self, record: InputRecord) -> None:
        """Ask for it until the cell has room; durable is enough, the leader decides."""
        try:
            caller, request = open_record(
                record.value,
                accounts=self._accounts,
                cell_key=self._cell_key,
                now_ms=self._clock.wall_ms(),
            )
        except Refusal as refusal:
            self._told(refusal.code, refusal.message)
            return
        while True:
            try:
                await self._driver.call(partial(self._submit, caller, request))
            except Refusal as refusal:
                if refusal.retry_after_ms:
                    await asyncio.sleep(refusal.retry_after_ms / 1000)
                    continue
                self._told(refusal.code, refusal.message)
            else:
                self._told("taken", request.request_id)
            return

    def _submit(
        self, caller: Caller, request: job_service_pb2.SubmitJobRequest, call: int, now: Now
    ) -> None:
        self._driver.core.submit(call, caller, request, now)
