"""A gateway for tests of the SDK: the generated services over a dictionary, on a real gRPC server.

It keeps what it was told, answers at once, and fails on demand. It must never schedule anything.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from tidemill.v1 import (
    fleet_service_pb2 as fleet_pb,
)
from tidemill.v1 import (
    fleet_service_pb2_grpc,
    job_service_pb2_grpc,
    log_service_pb2_grpc,
    queue_service_pb2_grpc,
    training_service_pb2_grpc,
    views_pb2,
)
from tidemill.v1 import (
    job_service_pb2 as job_pb,
)
from tidemill.v1 import (
    log_service_pb2 as log_pb,
)
from tidemill.v1 import (
    queue_service_pb2 as queue_pb,
)
from tidemill.v1 import (
    reports_pb2 as reports_pb,
)
from tidemill.v1 import (
    telemetry_pb2 as telemetry_pb,
)
from tidemill.v1 import (
    training_service_pb2 as training_pb,
)

TOKEN = "good"


class Fault:
    """How a call fails: a status, and the details a gateway would send."""

    def __init__(
        self, code: str, message: str, *, reason: str = "", field: str = "", retry_ms: int = 0
    ) -> None:
        self.code, self.message, self.reason = code, message, reason
        self.field, self.retry_ms = field, retry_ms

    def abort(self, context: Any) -> None:
        details = []
        if self.field:
            bad = error_details_pb2.BadRequest()
            bad.field_violations.add(field=self.field, description=self.message)
            details.append(bad)
        if self.reason:
            details.append(error_details_pb2.ErrorInfo(reason=self.reason, domain="tidemill"))
        if self.retry_ms:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(self.retry_ms)
            details.append(retry)
        status = status_pb2.Status(code=code_pb2.Code.Value(self.code), message=self.message)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        context.abort_with_status(rpc_status.to_status(status))


class FakeGateway(
    job_service_pb2_grpc.JobServiceServicer,
    queue_service_pb2_grpc.QueueServiceServicer,
    fleet_service_pb2_grpc.FleetServiceServicer,
    log_service_pb2_grpc.LogServiceServicer,
    training_service_pb2_grpc.TrainingServiceServicer,
):
    """One cell, as its gateway shows it. Set what it holds; read what it was told."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: dict[str, views_pb2.JobView] = {}
        self.explained: dict[str, job_pb.ExplainJobResponse] = {}
        self.nodes: dict[str, views_pb2.NodeView] = {}
        self.queues: dict[str, views_pb2.QueueView] = {}
        self.cell = views_pb2.CellView(
            cell="test", leader="s1", term=3, version="0.1.0", nodes_ready=1, nodes=1
        )
        self.entries: list[log_pb.ReadEntriesResponse] = []
        self.verified: list[log_pb.VerifyLogResponse] = []
        self.replayed = log_pb.ReplayLogResponse()
        self.lines: list[job_pb.HistoryLine] = []
        self.written: dict[str, list[bytes]] = {}
        self.advice = training_pb.GetAdviceResponse()
        self.submitted: dict[str, job_pb.SubmitJobRequest] = {}
        self.refuse: Callable[[job_pb.SubmitJobRequest], Fault | None] = lambda _: None
        self.calls: list[tuple[str, Any]] = []
        self.faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self.cut_stream_after: deque[int] = deque()
        self.reports: list[reports_pb.Report] = []
        self.progress: list[telemetry_pb.Progress] = []
        # Calls wait while this is not set: a gateway that is there and answers nothing.
        self.answering = threading.Event()
        self.answering.set()
        self._server: grpc.Server | None = None
        self.port = 0

    # ------------------------------------------------------------ the server

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """Serve, on the port of the last time if there was one; with credentials over TLS alone."""
        server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        for add in (
            job_service_pb2_grpc.add_JobServiceServicer_to_server,
            queue_service_pb2_grpc.add_QueueServiceServicer_to_server,
            fleet_service_pb2_grpc.add_FleetServiceServicer_to_server,
            log_service_pb2_grpc.add_LogServiceServicer_to_server,
            training_service_pb2_grpc.add_TrainingServiceServicer_to_server,
        ):
            add(self, server)
        if credentials is None:
            self.port = server.add_insecure_port(self.address)
        else:
            self.port = server.add_secure_port(self.address, credentials)
        server.start()
        self._server = server

    def stop(self) -> None:
        """Gone, like a killed process: connections are cut."""
        self.answering.set()
        if self._server is not None:
            with self.changed:
                self.changed.notify_all()
            self._server.stop(grace=0).wait()
            self._server = None

    def fail(self, method: str, *faults: Fault) -> None:
        """The next calls of `method` fail so."""
        self.faults[method].extend(faults)

    def put_job(self, view: views_pb2.JobView) -> None:
        """A job is now so; watchers see it."""
        with self.changed:
            self.jobs[view.job] = view
            self.changed.notify_all()

    def saw(self, condition: Callable[[], bool], *, within_s: float = 20.0) -> bool:
        """Whether the condition came true in time."""
        with self.changed:
            return self.changed.wait_for(condition, timeout=within_s)

    def _begin(self, method: str, request: Any, context: Any) -> None:
        self.answering.wait(30.0)
        with self.changed:
            self.calls.append((method, request))
            self.changed.notify_all()
            fault = self.faults[method].popleft() if self.faults[method] else None
        token = dict(context.invocation_metadata()).get("authorization", "")
        if token != f"Bearer {TOKEN}":
            fault = Fault("UNAUTHENTICATED", "the token is not known here", reason="bad_token")
        if fault is not None:
            fault.abort(context)

    def _find(self, table: dict[str, Any], key: str, context: Any, kind: str) -> Any:
        found = [
            item
            for name, item in table.items()
            if name == key or str(getattr(item, "number", "")) == key
        ]
        found = found or [item for name, item in table.items() if key and name.startswith(key)]
        if len(found) != 1:
            why = f"no {kind} {key!r}" if not found else f"{key!r} fits {len(found)} {kind}s"
            Fault("NOT_FOUND", why, reason=f"unknown_{kind}").abort(context)
        return found[0]

    # ------------------------------------------------------------ JobService

    def SubmitJob(self, request: Any, context: Any) -> Any:
        self._begin("SubmitJob", request, context)
        fault = self.refuse(request)
        if fault is not None:
            fault.abort(context)
        return self._admit(request)

    def SubmitJobs(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        self._begin("SubmitJobs", None, context)
        left = self.cut_stream_after.popleft() if self.cut_stream_after else -1
        for request in request_iterator:
            if left == 0:
                Fault("UNAVAILABLE", "cut").abort(context)
            left -= 1
            fault = self.refuse(request.submit)
            if fault is None:
                yield job_pb.SubmitJobsResponse(result=self._admit(request.submit))
            else:
                refused = job_pb.SubmitJobResponse(
                    status=job_pb.SUBMIT_STATUS_REFUSED, field=fault.field
                )
                refused.reason.code, refused.reason.message = fault.reason, fault.message
                yield job_pb.SubmitJobsResponse(result=refused)

    def _admit(self, request: job_pb.SubmitJobRequest) -> job_pb.SubmitJobResponse:
        with self.changed:
            self.submitted.setdefault(request.request_id, request)
            number = (
                list(self.submitted).index(request.request_id) + 1
                if len(self.submitted) < 1000
                else 0
            )
            job = f"job{number:09d}"
            view = views_pb2.JobView(
                job=job, number=number, state="queued", spec=request.spec, seen_step=-1
            )
            self.jobs.setdefault(job, view)
            self.changed.notify_all()
        return job_pb.SubmitJobResponse(
            job=job, number=number, status=job_pb.SUBMIT_STATUS_ADMITTED
        )

    def GetJob(self, request: Any, context: Any) -> Any:
        self._begin("GetJob", request, context)
        return job_pb.GetJobResponse(job=self._find(self.jobs, request.job, context, "job"))

    def ListJobs(self, request: Any, context: Any) -> Any:
        self._begin("ListJobs", request, context)
        matching = [
            self.jobs[name]
            for name in sorted(self.jobs)
            if _matches(self.jobs[name], request.filter)
        ]
        first = int(request.page_token or 0)
        page = matching[first : first + request.page_size]
        more = first + len(page) < len(matching)
        token = str(first + len(page)) if more else ""
        return job_pb.ListJobsResponse(jobs=page, next_page_token=token, total=len(matching))

    def WatchJobs(self, request: Any, context: Any) -> Iterator[Any]:
        self._begin("WatchJobs", request, context)
        sent: dict[str, int] = {}
        current = False
        left = self.cut_stream_after.popleft() if self.cut_stream_after else -1
        while context.is_active():
            with self.changed:
                news = [job for job in self.jobs.values() if job.offset > sent.get(job.job, -1)]
                if not news and current:
                    self.changed.wait(0.2)
            for job in news:
                sent[job.job] = job.offset
                if request.filter.jobs and job.job not in request.filter.jobs:
                    continue
                if left == 0:
                    Fault("UNAVAILABLE", "cut").abort(context)
                left -= 1
                yield job_pb.WatchJobsResponse(job=job)
            if not current:
                current = True
                yield job_pb.WatchJobsResponse(current=True)

    def ExplainJob(self, request: Any, context: Any) -> Any:
        self._begin("ExplainJob", request, context)
        job = self._find(self.jobs, request.job, context, "job")
        return self.explained.get(job.job) or job_pb.ExplainJobResponse(job=job, reason=job.reason)

    def ReadLogs(self, request: Any, context: Any) -> Iterator[Any]:
        self._begin("ReadLogs", request, context)
        job = self._find(self.jobs, request.job, context, "job")
        for chunk in self.written.get(job.job, []):
            yield job_pb.ReadLogsResponse(data=chunk, run=f"{job.job}.1.{request.rank}")

    def CancelJob(self, request: Any, context: Any) -> Any:
        return job_pb.CancelJobResponse(job=self._move("CancelJob", request, context, "cancelled"))

    def HoldJob(self, request: Any, context: Any) -> Any:
        return job_pb.HoldJobResponse(job=self._move("HoldJob", request, context, "held"))

    def ReleaseJob(self, request: Any, context: Any) -> Any:
        return job_pb.ReleaseJobResponse(job=self._move("ReleaseJob", request, context, "queued"))

    def RequeueJob(self, request: Any, context: Any) -> Any:
        return job_pb.RequeueJobResponse(job=self._move("RequeueJob", request, context, "queued"))

    def _move(self, method: str, request: Any, context: Any, state: str) -> views_pb2.JobView:
        self._begin(method, request, context)
        view: views_pb2.JobView = self._find(self.jobs, request.job, context, "job")
        view.state = state
        view.offset += 1
        with self.changed:
            self.changed.notify_all()
        return view

    # ------------------------------------------------------------ fleet, queues

    def ListNodes(self, request: Any, context: Any) -> Any:
        self._begin("ListNodes", request, context)
        shown = [
            node
            for node in self.nodes.values()
            if not request.states or node.state in request.states
        ]
        return fleet_pb.ListNodesResponse(nodes=shown, total=len(shown))

    def GetNode(self, request: Any, context: Any) -> Any:
        self._begin("GetNode", request, context)
        return fleet_pb.GetNodeResponse(node=self._find(self.nodes, request.node, context, "node"))

    def CordonNode(self, request: Any, context: Any) -> Any:
        return fleet_pb.CordonNodeResponse(
            node=self._serve("CordonNode", request, context, "cordoned")
        )

    def UncordonNode(self, request: Any, context: Any) -> Any:
        return fleet_pb.UncordonNodeResponse(
            node=self._serve("UncordonNode", request, context, "in_service")
        )

    def DrainNode(self, request: Any, context: Any) -> Any:
        return fleet_pb.DrainNodeResponse(
            node=self._serve("DrainNode", request, context, "draining")
        )

    def ConfirmNodeDead(self, request: Any, context: Any) -> Any:
        return fleet_pb.ConfirmNodeDeadResponse(
            node=self._serve("ConfirmNodeDead", request, context, "")
        )

    def RemoveNode(self, request: Any, context: Any) -> Any:
        self._begin("RemoveNode", request, context)
        del self.nodes[self._find(self.nodes, request.node, context, "node").node]
        return fleet_pb.RemoveNodeResponse()

    def _serve(self, method: str, request: Any, context: Any, service: str) -> views_pb2.NodeView:
        self._begin(method, request, context)
        node: views_pb2.NodeView = self._find(self.nodes, request.node, context, "node")
        node.service = service or node.service
        return node

    def GetCell(self, request: Any, context: Any) -> Any:
        self._begin("GetCell", request, context)
        return fleet_pb.GetCellResponse(cell=self.cell)

    def ListQueues(self, request: Any, context: Any) -> Any:
        self._begin("ListQueues", request, context)
        return queue_pb.ListQueuesResponse(queues=self.queues.values())

    def ApplyQueue(self, request: Any, context: Any) -> Any:
        self._begin("ApplyQueue", request, context)
        asked = request.queue
        view = views_pb2.QueueView(
            queue=asked.queue,
            parent=asked.parent,
            device_limit=asked.device_limit,
            cpu_milli_limit=asked.cpu_milli_limit,
            job_limit=asked.job_limit,
        )
        self.queues[asked.queue] = view
        return queue_pb.ApplyQueueResponse(queue=view)

    def RemoveQueue(self, request: Any, context: Any) -> Any:
        self._begin("RemoveQueue", request, context)
        del self.queues[self._find(self.queues, request.queue, context, "queue").queue]
        return queue_pb.RemoveQueueResponse()

    # ------------------------------------------------------------ log

    def ReadEntries(self, request: Any, context: Any) -> Iterator[Any]:
        self._begin("ReadEntries", request, context)
        shown = [entry for entry in self.entries if entry.accepted or request.include_void]
        if request.from_offset:
            shown = [entry for entry in shown if entry.offset >= request.from_offset]
        elif request.last:
            shown = shown[-request.last :]
        left = self.cut_stream_after.popleft() if self.cut_stream_after else -1
        for entry in shown:
            if left == 0:
                Fault("UNAVAILABLE", "cut").abort(context)
            left -= 1
            yield entry

    def VerifyLog(self, request: Any, context: Any) -> Iterator[Any]:
        self._begin("VerifyLog", request, context)
        yield from self.verified

    def ReplayLog(self, request: Any, context: Any) -> Any:
        self._begin("ReplayLog", request, context)
        return self.replayed

    def ReadHistory(self, request: Any, context: Any) -> Any:
        self._begin("ReadHistory", request, context)
        return log_pb.ReadHistoryResponse(lines=self.lines)

    # ------------------------------------------------------------ TrainingService

    def ReportProgress(self, request: Any, context: Any) -> Any:
        self._begin("ReportProgress", request, context)
        with self.changed:
            self.progress.extend(request.progress)
            self.changed.notify_all()
        return training_pb.ReportProgressResponse()

    def ReportCheckpoint(self, request: Any, context: Any) -> Any:
        self._begin("ReportCheckpoint", request, context)
        with self.changed:
            self.reports.append(request.report)
            self.changed.notify_all()
        return training_pb.ReportCheckpointResponse()

    def GetAdvice(self, request: Any, context: Any) -> Any:
        self._begin("GetAdvice", request, context)
        return self.advice

    def kinds(self) -> list[str]:
        """Kinds of the reports, in order."""
        with self.changed:
            return [str(report.WhichOneof("kind")) for report in self.reports]


def _matches(view: views_pb2.JobView, wanted: job_pb.JobFilter) -> bool:
    ended = view.state in {"succeeded", "failed", "cancelled"}
    if wanted.jobs:
        return any(view.job.startswith(job) for job in wanted.jobs)
    if wanted.states:
        return view.state in wanted.states
    if ended and not wanted.all:
        return False
    return wanted.name_contains in view.spec.name and wanted.queue in {"", view.spec.queue}
