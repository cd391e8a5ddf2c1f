"""LogService: the log itself, read in worker threads; only `follow` waits for the live fold to see more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, closing
from typing import Final

from services.gateway.driver import Driver
from services.gateway.explain import moment_of
from services.gateway.gate import Context
from services.gateway.lookback import Lookback
from services.gateway.names import find_subject
from services.gateway.refold import Walk, entry_response, history, newest, replay, still, verify
from services.gateway.refusal import Refusal, Status
from services.gateway.trail import Mark
from services.gateway.validation import check
from services.runtime.ports import EventLog
from tidemill.v1 import log_service_pb2 as wire
from tidemill.v1 import log_service_pb2_grpc

LAST_MAX: Final = 10_000


class LogServicer(log_service_pb2_grpc.LogServiceServicer):
    """Read, verify, replay."""

    def __init__(self, driver: Driver, lookback: Lookback) -> None:
        self._driver = driver
        self._core = driver.core
        self._lookback = lookback

    async def ReadEntries(
        self, request: wire.ReadEntriesRequest, _context: Context
    ) -> AsyncIterator[wire.ReadEntriesResponse]:
        """From an offset, or the last few, or all; then what comes, when asked to follow."""
        check(request)
        if request.last > LAST_MAX:
            message = f"last: at most {LAST_MAX}; read more with from_offset"
            raise Refusal(Status.INVALID_ARGUMENT, "too_many_entries", message)
        walk_from = request.from_offset
        lookback = self._lookback
        async with lookback.following() if request.follow else lookback.reading() as reading:
            if request.last and not request.from_offset:
                end = self._core.cluster.offset
                shown = await reading.run(self._last(reading.log, request, end))
                for response in shown:
                    yield response
                walk_from = end + 1
            walk = self._walk(reading.log, walk_from)
            while True:
                folded = self._driver.folded
                while responses := await reading.run(lambda: _next(walk)):
                    for response in responses:
                        if response.offset >= walk_from and _shown(request, response):
                            yield response
                if not request.follow:
                    return
                if walk.next_offset > self._core.cluster.offset:
                    await self._driver.until_folded(folded)

    async def VerifyLog(
        self, request: wire.VerifyLogRequest, _context: Context
    ) -> AsyncIterator[wire.VerifyLogResponse]:
        """Compared with what this gateway and the snapshots have seen: they were there before the log was changed."""
        check(request)
        cluster = self._core.cluster
        heads = {**self._core.trail.heads(), cluster.offset: cluster.head}
        async with self._lookback.reading() as reading:
            with closing(self._lookback.snapshots()) as snapshots:
                kept = await reading.run(
                    lambda: {each.offset: each.head for each in snapshots.load()}
                )
            steps = verify(reading.log, cluster.cell, {**kept, **heads}, reading.stop)
            async with aclosing(reading.progress(steps)) as responses:
                async for response in responses:
                    yield response

    async def ReplayLog(
        self, request: wire.ReplayLogRequest, _context: Context
    ) -> wire.ReplayLogResponse:
        check(request)
        moment = moment_of(at_ms=request.at_ms, at_offset=request.at_offset)
        async with self._lookback.reading() as reading:

            def made() -> Callable[[], wire.ReplayLogResponse]:
                live = still(self._core.cluster)
                return lambda: replay(reading.log, live, moment, reading.stop)

            return await reading.run_made(made)

    async def ReadHistory(
        self, request: wire.ReadHistoryRequest, _context: Context
    ) -> wire.ReadHistoryResponse:
        """The whole log is read: what has left the tables of the cell is found too."""
        check(request)
        cell, subject = self._core.cluster.cell, find_subject(self._core.cluster, request.id)
        lines = await self._lookback.run(
            lambda log, stop: history(
                Walk(log, cell).steps(stop), subject, from_ms=request.from_ms, to_ms=request.to_ms
            )
        )
        if not lines:
            raise Refusal(
                Status.NOT_FOUND,
                "no_history",
                f"the log holds nothing about {request.id!r} in that time: give a job's number or whole id, "
                "or the name of a node or queue",
            )
        return wire.ReadHistoryResponse(lines=lines)

    def _walk(self, log: EventLog, offset: int) -> Walk:
        return Walk(log, self._core.cluster.cell, self._core.trail.before(offset))

    def _last(
        self, log: EventLog, request: wire.ReadEntriesRequest, end: int
    ) -> Callable[[], Sequence[wire.ReadEntriesResponse]]:
        cell, before = self._core.cluster.cell, self._core.trail.before

        def walk_from(offset: int) -> tuple[Walk, bool]:
            mark: Mark = before(offset)
            return Walk(log, cell, mark), mark.offset < 0

        return lambda: newest(
            walk_from, end, request.last, lambda response: _shown(request, response)
        )


def _next(walk: Walk) -> Sequence[wire.ReadEntriesResponse]:
    return [entry_response(step) for step in walk.read()]


def _shown(request: wire.ReadEntriesRequest, response: wire.ReadEntriesResponse) -> bool:
    return response.accepted or request.include_void
