"""JobService over the core. Reads are answered at once from the fold; changes wait for the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final, TypeAlias, TypeVar

import msgspec
from google.protobuf.message import Message

from services.gateway.auth import Caller
from services.gateway.changes import ChangeRequest
from services.gateway.driver import Driver
from services.gateway.explain import explain
from services.gateway.gate import Context, caller
from services.gateway.lookback import Lookback
from services.gateway.reads import NOT_PLACED_YET
from services.gateway.refusal import Refusal
from statemachines.run import RunState
from tidemill.v1 import common_pb2, job_service_pb2_grpc
from tidemill.v1 import job_service_pb2 as jobs

# Submissions of one stream, and of all, that may wait for their answers; more are not read until some are answered.
# Several times what one write or one step of the leader carries, so that all of them are busy at once.
PIPELINE_MAX: Final = 6_000
STREAMED_MAX: Final = 15_000

M = TypeVar("M", bound=Message)


class _Begun(msgspec.Struct, frozen=True):
    """A submission of a stream that waits for its answer."""

    call: int
    answer: asyncio.Future[Message]


class _End(msgspec.Struct, frozen=True):
    """No more submissions will come, and why when it is not that the client has sent all."""

    error: Exception | None = None


_Step: TypeAlias = _Begun | Refusal | _End


class JobServicer(job_service_pb2_grpc.JobServiceServicer):
    """Jobs: submit, change, look, follow."""

    def __init__(self, driver: Driver, lookback: Lookback) -> None:
        self._driver = driver
        self._core = driver.core
        self._lookback = lookback
        self._room = asyncio.Semaphore(STREAMED_MAX)

    # --- submit

    async def SubmitJob(
        self, request: jobs.SubmitJobRequest, context: Context
    ) -> jobs.SubmitJobResponse:
        call, answer = self._begin(caller(), request, self._deadline_ms(context))
        try:
            return expect(jobs.SubmitJobResponse, await answer)
        finally:
            self._driver.forget(call)

    async def SubmitJobs(
        self, request_iterator: AsyncIterator[jobs.SubmitJobsRequest], context: Context
    ) -> AsyncIterator[jobs.SubmitJobsResponse]:
        """Submissions are begun as they come and answered in their order, so many share one durable write."""
        pipeline: asyncio.Queue[_Step] = asyncio.Queue(PIPELINE_MAX)
        reader = asyncio.create_task(self._begin_all(request_iterator, context, pipeline))
        try:
            while not isinstance(step := await pipeline.get(), _End):
                yield jobs.SubmitJobsResponse(result=await self._result(step))
            if step.error is not None:
                raise step.error
        finally:
            reader.cancel()
            while not pipeline.empty():
                left = pipeline.get_nowait()
                if isinstance(left, _Begun):
                    self._driver.forget(left.call)

    async def _begin_all(
        self,
        requests: AsyncIterator[jobs.SubmitJobsRequest],
        context: Context,
        pipeline: asyncio.Queue[_Step],
    ) -> None:
        who = caller()
        end = _End()
        try:
            async for request in requests:
                await self._room.acquire()
                try:
                    call, answer = self._begin(who, request.submit, self._deadline_ms(context))
                except Refusal as refusal:
                    self._room.release()
                    await pipeline.put(refusal)
                else:
                    # When it is answered, not when that is read: who does not read keeps nobody out.
                    answer.add_done_callback(self._answered)
                    await pipeline.put(_Begun(call, answer))
        except Exception as error:  # noqa: BLE001 - raised again by the one who answers
            end = _End(error)
        await pipeline.put(end)

    def _answered(self, _answer: asyncio.Future[Message]) -> None:
        self._room.release()

    async def _result(self, step: _Begun | Refusal) -> jobs.SubmitJobResponse:
        """The answer to one submission; what may work later ends the stream, so that the client sends the rest again."""
        try:
            if isinstance(step, Refusal):
                raise step
            try:
                return expect(jobs.SubmitJobResponse, await step.answer)
            finally:
                self._driver.forget(step.call)
        except Refusal as refusal:
            if refusal.retry_after_ms:
                raise
            return jobs.SubmitJobResponse(
                status=jobs.SUBMIT_STATUS_REFUSED,
                reason=common_pb2.Reason(code=refusal.code, message=refusal.message),
                field=refusal.violations[0].field if refusal.violations else "",
            )

    def _begin(
        self, who: Caller, request: jobs.SubmitJobRequest, deadline_ms: int
    ) -> tuple[int, asyncio.Future[Message]]:
        return self._driver.begin(
            lambda call, now: self._core.submit(call, who, request, now, deadline_ms=deadline_ms)
        )

    def _deadline_ms(self, context: Context) -> int:
        return self._driver.deadline_ms(context.time_remaining())

    # --- change

    async def CancelJob(
        self, request: jobs.CancelJobRequest, context: Context
    ) -> jobs.CancelJobResponse:
        return expect(jobs.CancelJobResponse, await change(self._driver, request, context))

    async def HoldJob(self, request: jobs.HoldJobRequest, context: Context) -> jobs.HoldJobResponse:
        return expect(jobs.HoldJobResponse, await change(self._driver, request, context))

    async def ReleaseJob(
        self, request: jobs.ReleaseJobRequest, context: Context
    ) -> jobs.ReleaseJobResponse:
        return expect(jobs.ReleaseJobResponse, await change(self._driver, request, context))

    async def RequeueJob(
        self, request: jobs.RequeueJobRequest, context: Context
    ) -> jobs.RequeueJobResponse:
        return expect(jobs.RequeueJobResponse, await change(self._driver, request, context))

    # --- look

    async def GetJob(self, request: jobs.GetJobRequest, _context: Context) -> jobs.GetJobResponse:
        return self._core.reads.get_job(request)

    async def ListJobs(
        self, request: jobs.ListJobsRequest, _context: Context
    ) -> jobs.ListJobsResponse:
        return self._core.reads.list_jobs(request)

    async def ExplainJob(
        self, request: jobs.ExplainJobRequest, _context: Context
    ) -> jobs.ExplainJobResponse:
        return await explain(self._driver, self._lookback, request)

    async def WatchJobs(
        self, request: jobs.WatchJobsRequest, _context: Context
    ) -> AsyncIterator[jobs.WatchJobsResponse]:
        watcher = self._core.watch(request)
        try:
            async with aclosing(self._driver.drain(watcher)) as messages:
                async for message in messages:
                    yield expect(jobs.WatchJobsResponse, message)
        finally:
            self._core.watchers.remove(watcher)

    async def ReadLogs(
        self, request: jobs.ReadLogsRequest, _context: Context
    ) -> AsyncIterator[jobs.ReadLogsResponse]:
        who = caller()
        await self._until_started(who, request)
        reader = self._core.read_output(who, request)
        self._driver.perform()
        try:
            async with aclosing(self._driver.drain(reader)) as messages:
                async for message in messages:
                    yield expect(jobs.ReadLogsResponse, message)
        finally:
            self._core.sessions.stop_reading(reader)
            self._driver.perform()

    async def _until_started(self, who: Caller, request: jobs.ReadLogsRequest) -> None:
        """Who follows a run that has not started yet waits for it; raises Refusal for what will never be."""
        while request.follow:
            folded = self._driver.folded
            try:
                if self._core.reads.run_of(who, request).state is not RunState.PLACED:
                    return
            except Refusal as refusal:
                if refusal.code != NOT_PLACED_YET:
                    raise
            await self._driver.until_folded(folded)


async def change(driver: Driver, request: ChangeRequest, context: Context) -> Message:
    """Ask the leader for a change and wait for its decision; raises Refusal."""
    who, deadline_ms = caller(), driver.deadline_ms(context.time_remaining())
    return await driver.call(
        lambda call, now: driver.core.change(call, who, request, now, deadline_ms=deadline_ms)
    )


def expect(kind: type[M], message: Message) -> M:
    """The answer as the kind that its method has."""
    assert isinstance(message, kind), f"{type(message).__name__} is not a {kind.__name__}"
    return message
