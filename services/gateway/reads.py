"""Answers that come from the fold alone: jobs, nodes, queues, the cell. Each is a message as of one entry of the log."""

from __future__ import annotations

from typing import Final

from services.gateway.auth import Caller, may_read_output
from services.gateway.names import Selection, find_job, find_node, find_queue
from services.gateway.progress import ProgressTable
from services.gateway.refusal import Refusal, Status
from services.gateway.validation import check
from services.gateway.views import cell_view, job_line, job_view, node_view, queue_view
from statemachines.cluster import Cluster
from statemachines.job import ENDED, Job
from statemachines.node import NodeState
from statemachines.run import Run
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import queue_service_pb2 as queues
from tidemill.v1 import views_pb2

JOBS_PER_PAGE: Final = 500
NODES_PER_PAGE: Final = 1_000
# The code of the refusal that another fact of the log may lift.
NOT_PLACED_YET: Final = "not_placed_yet"


class Reads:
    """Read calls; each checks its request and raises Refusal."""

    def __init__(self, cluster: Cluster, progress: ProgressTable, *, version: str) -> None:
        self.cluster = cluster
        self._progress = progress
        self._version = version

    # --- parts

    def job(self, job: str) -> views_pb2.JobView:
        """Everything of a job; raises Refusal when it is not here."""
        return job_view(self.cluster, self._progress, find_job(self.cluster, job))

    def line(self, job: Job) -> views_pb2.JobView:
        """What a list shows of a job."""
        return job_line(self.cluster, self._progress, job)

    def node(self, node: str) -> views_pb2.NodeView:
        """A node; raises Refusal when it is not here."""
        return node_view(self.cluster, find_node(self.cluster, node))

    def queue(self, queue: str) -> views_pb2.QueueView:
        """A queue; raises Refusal when it is not here."""
        return queue_view(self.cluster, find_queue(self.cluster, queue))

    # --- calls

    def get_job(self, request: jobs.GetJobRequest) -> jobs.GetJobResponse:
        check(request)
        return jobs.GetJobResponse(job=self.job(request.job))

    def list_jobs(self, request: jobs.ListJobsRequest) -> jobs.ListJobsResponse:
        """Newest first. The token is the number of the last job shown, so pages neither repeat nor skip a job."""
        check(request)
        below = _page_number(request.page_token)
        matching = list(Selection(self.cluster, request.filter).candidates())
        rest = [job for job in matching if job.number < below] if below else matching
        shown = rest[: request.page_size or JOBS_PER_PAGE]
        return jobs.ListJobsResponse(
            jobs=[self.line(job) for job in shown],
            next_page_token=str(shown[-1].number) if len(rest) > len(shown) else "",
            total=len(matching),
        )

    def get_node(self, request: fleet.GetNodeRequest) -> fleet.GetNodeResponse:
        check(request)
        return fleet.GetNodeResponse(node=self.node(request.node))

    def list_nodes(self, request: fleet.ListNodesRequest) -> fleet.ListNodesResponse:
        """By name. The token is the name of the last node shown."""
        check(request)
        known = {state.value for state in NodeState}
        unknown = sorted(set(request.states) - known)
        if unknown:
            raise Refusal(
                Status.INVALID_ARGUMENT,
                "unknown_state",
                f"no node state {unknown[0]!r}: use {', '.join(sorted(known))}",
            )
        size = request.page_size or NODES_PER_PAGE
        wanted = [
            name
            for name in sorted(self.cluster.nodes)
            if not request.states or self.cluster.nodes[name].state.value in request.states
        ]
        rest = [name for name in wanted if name > request.page_token]
        shown = rest[:size]
        return fleet.ListNodesResponse(
            nodes=[node_view(self.cluster, self.cluster.nodes[name]) for name in shown],
            next_page_token=shown[-1] if len(rest) > size else "",
            total=len(wanted),
        )

    def list_queues(self, request: queues.ListQueuesRequest) -> queues.ListQueuesResponse:
        check(request)
        found = [self.cluster.queues[name] for name in sorted(self.cluster.queues)]
        return queues.ListQueuesResponse(queues=[queue_view(self.cluster, each) for each in found])

    def get_cell(self, request: fleet.GetCellRequest, *, lag_ms: int) -> fleet.GetCellResponse:
        check(request)
        cell = cell_view(self.cluster, version=self._version, lag_ms=lag_ms)
        return fleet.GetCellResponse(cell=cell)

    def run_of(self, caller: Caller, request: jobs.ReadLogsRequest) -> Run:
        """The run whose output is asked for, and may be read by the caller."""
        check(request)
        job = find_job(self.cluster, request.job)
        may_read_output(caller, owner=job.by, what=f"job {job.id}")
        attempt = (
            self.cluster.find_attempt(job.id, request.attempt)
            if request.attempt
            else self.cluster.attempt(job.id)
        )
        if attempt is None:
            raise _no_attempt(job, request.attempt)
        for run in attempt.runs:
            if self.cluster.runs[run].rank == request.rank:
                return self.cluster.runs[run]
        raise Refusal(
            Status.INVALID_ARGUMENT,
            "no_rank",
            f"job {job.id} has ranks 0 to {len(attempt.runs) - 1}, not {request.rank}",
        )


def _no_attempt(job: Job, number: int) -> Refusal:
    if job.attempt < max(number, 1) and job.state not in ENDED:
        return Refusal(
            Status.FAILED_PRECONDITION,
            NOT_PLACED_YET,
            f"job {job.id} is {job.state}, at attempt {job.attempt}: `tidemill why {job.id}` says what it waits for",
            retry_after_ms=1_000,
        )
    return Refusal(
        Status.FAILED_PRECONDITION,
        "no_attempt",
        f"no such attempt of job {job.id} is kept here; it is {job.state}, at attempt {job.attempt}",
    )


def _page_number(token: str) -> int:
    if not token:
        return 0
    if not token.isdecimal() or len(token) > 18:
        raise Refusal(
            Status.INVALID_ARGUMENT,
            "bad_page_token",
            "page_token is not one of ours: begin again without it",
        )
    return int(token)
