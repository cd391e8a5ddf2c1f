"""The client of a cell: submit, look, change, follow. Synchronous, safe to use from many threads.

It speaks in the generated messages of tidemill.v1. It must never decide anything that the cell decides.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from types import TracebackType
from typing import Final, Self

import grpc

from tidemill.calls import PAGE, REOPENABLE, STREAM_DEADLINE_S, Caller, Patience, new_id
from tidemill.client_fleet import FleetCalls
from tidemill.client_log import LogCalls
from tidemill.context import discover
from tidemill.errors import CallTimeoutError
from tidemill.outbox import Outbox
from tidemill.v1 import (
    job_service_pb2 as job_pb,
)
from tidemill.v1 import (
    job_service_pb2_grpc,
    views_pb2,
)

ENDED_STATES: Final = ("succeeded", "failed", "cancelled")


class Client(FleetCalls, LogCalls):
    """One connection to one cell; use it as a context manager or call close().

    Calls about jobs are here; those about nodes and queues are FleetCalls', those about the log LogCalls'.

    Every call has a deadline (`deadline_s`, or the call's own). Reads, and changes through their request id, are
    tried again within it while the gateway is unavailable. All calls raise TidemillError and its subclasses.
    """

    def __init__(
        self,
        gateway: str = "",
        *,
        token: str = "",
        context: str = "",
        cell: str = "",
        deadline_s: float = 15.0,
    ) -> None:
        self.context = discover(gateway=gateway, token=token, context=context, cell=cell)
        caller = Caller(self.context, deadline_s=deadline_s)
        FleetCalls.__init__(self, caller)
        LogCalls.__init__(self, caller)
        self._jobs = job_service_pb2_grpc.JobServiceStub(caller.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connection."""
        self._caller.close()

    # ------------------------------------------------------------ submit

    def submit(
        self, job: job_pb.SubmitJobRequest, *, deadline_s: float | None = None
    ) -> job_pb.SubmitJobResponse:
        """Submit one job; answers when the cell has decided, or when the request is durable.

        A request without an id gets one, once, so that trying again never makes a second job.
        Raises RefusedError with code and field when the cell decided against it.
        """
        return self._caller.unary(
            self._jobs.SubmitJob,
            with_request_id(job),
            what=f"job {job.spec.name!r} was not submitted",
            hint="tidemill submit --help",
            deadline_s=deadline_s,
        )

    def submit_many(
        self,
        jobs: Iterable[job_pb.SubmitJobRequest],
        *,
        window: int = 4000,
        give_up_after_s: float = 60.0,
    ) -> Iterator[tuple[job_pb.SubmitJobRequest, job_pb.SubmitJobResponse]]:
        """Submit a stream; yields each request with its answer, in order. A refusal is an answer, not an error.

        At most `window` requests are ahead of their answers. A lost connection sends the unanswered again under
        the same ids; gives up when it stays lost for `give_up_after_s`.
        """
        outbox = Outbox(map(with_request_id, jobs), window=window)
        patience = Patience(give_up_after_s)
        what = "the stream of submissions ended"
        try:
            while True:
                patience.opened()
                try:
                    for response in self._submit_stream(outbox):
                        patience.answered()
                        yield outbox.answered(), response.result
                except grpc.RpcError as error:
                    time.sleep(self._caller.before_reopening(error, patience, what=what))
                    continue
                outbox.finish()
                return
        finally:
            outbox.close()

    def _submit_stream(
        self, outbox: Outbox[job_pb.SubmitJobRequest]
    ) -> Iterator[job_pb.SubmitJobsResponse]:
        requests = (job_pb.SubmitJobsRequest(submit=job) for job in outbox.open())
        call = self._jobs.SubmitJobs(
            requests, metadata=self._caller.metadata, timeout=STREAM_DEADLINE_S
        )
        try:
            yield from call
        finally:
            call.cancel()

    # ------------------------------------------------------------ look

    def job(self, job: str) -> views_pb2.JobView:
        """One job by id, unique prefix or number. Raises NotFoundError."""
        request = job_pb.GetJobRequest(job=job)
        return self._caller.unary(self._jobs.GetJob, request, what=f"no job {job!r}").job

    def jobs(
        self, filter_: job_pb.JobFilter | None = None, *, limit: int = 0
    ) -> Iterator[views_pb2.JobView]:
        """Matching jobs, page by page; live ones unless the filter says otherwise. `limit` 0: all."""
        token, left = "", limit or -1
        while left:
            size = PAGE if left < 0 else min(PAGE, left)
            request = job_pb.ListJobsRequest(filter=filter_, page_size=size, page_token=token)
            page = self._caller.unary(self._jobs.ListJobs, request, what="cannot list jobs")
            yield from page.jobs
            token, left = page.next_page_token, max(-1, left - len(page.jobs)) if limit else -1
            if not token:
                return

    def watch(
        self, filter_: job_pb.JobFilter | None = None, *, give_up_after_s: float = 300.0
    ) -> Generator[job_pb.WatchJobsResponse, None, None]:
        """The view of each matching job, `current` once all are there, then every change; for ever.

        After a lost connection it goes on by itself: views that were seen before are not repeated.
        """
        seen: dict[str, int] = {}
        current = False
        request = job_pb.WatchJobsRequest(filter=filter_)
        for response in self._caller.resuming(
            lambda: self._jobs.WatchJobs(
                request, metadata=self._caller.metadata, timeout=STREAM_DEADLINE_S
            ),
            what="cannot watch jobs",
            give_up_after_s=give_up_after_s,
        ):
            view = response.job
            news = bool(view.job) and view.offset > seen.get(view.job, -1)
            if news:
                seen[view.job] = view.offset
            if news or (response.current and not current):
                yield response
            current = current or response.current

    def wait(self, job: str, *, timeout_s: float = 3600.0) -> views_pb2.JobView:
        """The job once it has ended. Raises CallTimeoutError when it has not within `timeout_s`."""
        ends = time.monotonic() + timeout_s
        job = self.job(job).job
        while True:
            view = self._first_ended(job, ends - time.monotonic())
            if view is not None:
                return view
            if time.monotonic() >= ends:
                raise CallTimeoutError(
                    f"job {job} has not ended within {timeout_s:g} s",
                    next_command=f"tidemill why {job}",
                )

    def _first_ended(self, job: str, within_s: float) -> views_pb2.JobView | None:
        request = job_pb.WatchJobsRequest(filter=job_pb.JobFilter(jobs=[job]))
        call = self._jobs.WatchJobs(
            request, metadata=self._caller.metadata, timeout=max(0.001, within_s)
        )
        try:
            for response in call:
                if response.job.state in ENDED_STATES:
                    return response.job
        except grpc.RpcError as error:
            if error.code() not in REOPENABLE:
                raise self._caller.failure(error, f"cannot wait for job {job}") from error
            time.sleep(min(0.2, max(0.0, within_s)))
        finally:
            call.cancel()
        return None

    def explain(self, job: str, *, at_ms: int = 0, at_offset: int = 0) -> job_pb.ExplainJobResponse:
        """Why the job is in its state, now or at an earlier time or offset, with its history."""
        request = job_pb.ExplainJobRequest(job=job, at_ms=at_ms, at_offset=at_offset)
        return self._caller.unary(
            self._jobs.ExplainJob, request, what=f"cannot explain job {job!r}"
        )

    def logs(
        self,
        job: str,
        *,
        rank: int = 0,
        attempt: int = 0,
        follow: bool = False,
        tail_bytes: int = 0,
    ) -> Iterator[job_pb.ReadLogsResponse]:
        """What a run wrote; `attempt` 0 is the newest, `tail_bytes` 0 all that is kept."""
        request = job_pb.ReadLogsRequest(
            job=job, rank=rank, attempt=attempt, follow=follow, tail_bytes=tail_bytes
        )
        timeout = STREAM_DEADLINE_S * 24 if follow else 60.0
        call = self._jobs.ReadLogs(request, metadata=self._caller.metadata, timeout=timeout)
        try:
            yield from call
        except grpc.RpcError as error:
            what = f"cannot read the logs of job {job!r}"
            again = f"tidemill logs {'-f ' if follow else ''}{job}"
            raise self._caller.failure(error, what, again) from error
        finally:
            call.cancel()

    # ------------------------------------------------------------ change

    def cancel(self, job: str, *, message: str = "", request_id: str = "") -> views_pb2.JobView:
        """Stop it for good."""
        request = job_pb.CancelJobRequest(
            job=job, message=message, request_id=request_id or new_id()
        )
        return self._caller.unary(
            self._jobs.CancelJob,
            request,
            what=f"job {job!r} was not cancelled",
            hint=f"tidemill why {job}",
        ).job

    def hold(self, job: str, *, message: str = "", request_id: str = "") -> views_pb2.JobView:
        """Keep it from being placed; a running attempt is stopped."""
        request = job_pb.HoldJobRequest(job=job, message=message, request_id=request_id or new_id())
        return self._caller.unary(
            self._jobs.HoldJob,
            request,
            what=f"job {job!r} was not held",
            hint=f"tidemill why {job}",
        ).job

    def release(self, job: str, *, request_id: str = "") -> views_pb2.JobView:
        """Let a held job be placed again."""
        request = job_pb.ReleaseJobRequest(job=job, request_id=request_id or new_id())
        return self._caller.unary(
            self._jobs.ReleaseJob,
            request,
            what=f"job {job!r} was not released",
            hint=f"tidemill why {job}",
        ).job

    def requeue(
        self, job: str, *, message: str = "", save_first: bool = False, request_id: str = ""
    ) -> views_pb2.JobView:
        """Stop its attempt and queue it again; with `save_first` it is asked for a checkpoint before."""
        request = job_pb.RequeueJobRequest(
            job=job, message=message, save_first=save_first, request_id=request_id or new_id()
        )
        return self._caller.unary(
            self._jobs.RequeueJob,
            request,
            what=f"job {job!r} was not requeued",
            hint=f"tidemill why {job}",
        ).job


def with_request_id(job: job_pb.SubmitJobRequest) -> job_pb.SubmitJobRequest:
    """The request itself when it names an id, else a copy with a fresh one."""
    if job.request_id:
        return job
    named = job_pb.SubmitJobRequest()
    named.CopyFrom(job)
    named.request_id = new_id()
    return named
