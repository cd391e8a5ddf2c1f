"""The gateway over real gRPC and SQLite, with a real leader: what a client sees, end to end."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.gateway.server import SERVICES
from services.runtime.ids import blob_digest
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
from tests.services.gateway.world import inventory, submission
from tidemill.v1 import common_pb2, reports_pb2, requests_pb2, telemetry_pb2
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import log_service_pb2 as log
from tidemill.v1 import node_service_pb2 as wire
from tidemill.v1 import queue_service_pb2 as queues
from tidemill.v1 import training_service_pb2 as training

ALICE, BOB, EYES, ROOT, AGENT = (as_(name) for name in ("alices", "bobs", "eyes", "root", "agents"))


# --- jobs


async def test_a_job_is_submitted_shown_listed_and_cancelled(served: Served) -> None:
    job = await admitted(served)
    shown = await served.jobs.GetJob(jobs.GetJobRequest(job="1"), **EYES)
    listed = await served.jobs.ListJobs(jobs.ListJobsRequest(), **BOB)
    cancelled = await served.jobs.CancelJob(jobs.CancelJobRequest(job=job[:6]), **ALICE)
    assert (shown.job.job, [view.job for view in listed.jobs], listed.total) == (job, [job], 1)
    assert (cancelled.job.job, cancelled.job.state) == (job, "cancelled")


async def test_a_stream_answers_in_order_and_a_refusal_does_not_end_it(served: Served) -> None:
    requests = [submission(f"r{i}") for i in range(300)]
    requests[7] = submission("r7", queue="nowhere")
    requests[9] = submission("r9", priority=2_000_000_000)
    call = served.jobs.SubmitJobs(
        (jobs.SubmitJobsRequest(submit=each) for each in requests), **ALICE
    )
    answers = [answer.result async for answer in call]
    numbers = [answer.number for answer in answers if answer.number]
    assert (len(answers), numbers) == (300, sorted(numbers))
    assert [
        (i, each.reason.code, each.field)
        for i, each in enumerate(answers)
        if each.status == jobs.SUBMIT_STATUS_REFUSED
    ] == [(7, "unknown_queue", "spec.queue"), (9, "invalid", "spec.priority")]


async def test_many_submissions_of_a_stream_share_few_entries(served: Served) -> None:
    call = served.jobs.SubmitJobs(
        (jobs.SubmitJobsRequest(submit=submission(f"r{i}")) for i in range(500)), **ALICE
    )
    assert len([answer async for answer in call]) == 500
    cell = await served.fleet.GetCell(fleet.GetCellRequest(), **ALICE)
    assert cell.cell.offset < 250


async def test_without_a_leader_a_submission_is_durable_by_its_deadline_and_decided_later(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        call = {**ALICE, "timeout": 1.0}
        answer = await served.jobs.SubmitJob(submission(), **call)
        change = await refused(
            served.jobs.CancelJob(jobs.CancelJobRequest(job=answer.job), **ALICE)
        )
        leader = Leader(tmp_path)
        try:
            watch = served.jobs.WatchJobs(
                jobs.WatchJobsRequest(filter=jobs.JobFilter(jobs=[answer.job])), **ALICE
            )
            while not (state := (await read(watch)).job.state):
                pass
            watch.cancel()
        finally:
            leader.stop()
    assert answer.status == jobs.SUBMIT_STATUS_DURABLE
    assert change.code() is grpc.StatusCode.NOT_FOUND
    assert state == "queued"


async def test_an_acknowledged_submission_survives_the_gateway(
    tmp_path: Path, leader: Leader
) -> None:
    async with serving(tmp_path) as served:
        job = await admitted(served)
    async with serving(tmp_path) as served:
        again = await served.jobs.SubmitJob(submission(), **ALICE)
        listed = await served.jobs.ListJobs(jobs.ListJobsRequest(), **ALICE)
    assert (again.job, again.number, listed.total) == (job, 1, 1)
    assert leader.error is None


async def test_watching_sees_a_change_of_another_caller(served: Served) -> None:
    job = await admitted(served)
    watch = served.jobs.WatchJobs(jobs.WatchJobsRequest(), **EYES)
    first = [await read(watch), await read(watch)]
    await served.jobs.HoldJob(jobs.HoldJobRequest(job=job), **ALICE)
    changed = await read(watch)
    watch.cancel()
    assert [message.current for message in first] == [False, True]
    assert (changed.job.job, changed.job.state) == (job, "held")


async def test_an_explanation_tells_why_and_what_happened_now_and_then(served: Served) -> None:
    job = await admitted(served, held=True)
    await served.jobs.ReleaseJob(jobs.ReleaseJobRequest(job=job), **ALICE)
    now = await served.jobs.ExplainJob(jobs.ExplainJobRequest(job=job), **EYES)
    then = await served.jobs.ExplainJob(
        jobs.ExplainJobRequest(job=job, at_offset=now.history[0].offset), **EYES
    )
    assert [line.fact for line in now.history][:3] == [
        "JobAdmitted", "JobReleased", "RequestAccepted",
    ]  # fmt: skip
    assert (then.job.state, [line.fact for line in then.history]) == ("held", ["JobAdmitted"])
    assert (now.job.state, bool(now.reason.message)) == ("queued", True)


# --- the log


async def test_the_log_is_read_from_its_end_and_followed(served: Served) -> None:
    await admitted(served, "r1")
    follow = served.log.ReadEntries(log.ReadEntriesRequest(last=1, follow=True), **EYES)
    last = await read(follow)
    job = await admitted(served, "r2")
    entry = last
    while "JobAdmitted" not in [line.fact for line in entry.lines] or entry is last:
        entry = await read(follow)
    follow.cancel()
    assert last.offset < entry.offset
    assert job in (await served.jobs.GetJob(jobs.GetJobRequest(job="2"), **EYES)).job.job


async def test_the_log_is_sound_and_replays_to_the_live_state(served: Served) -> None:
    for i in range(20):
        await admitted(served, f"r{i}")
    verified = [each async for each in served.log.VerifyLog(log.VerifyLogRequest(), **EYES)]
    replayed = await served.log.ReplayLog(log.ReplayLogRequest(), **EYES)
    entries = [each async for each in served.log.ReadEntries(log.ReadEntriesRequest(), **EYES)]
    assert (verified[-1].ok, verified[-1].done, verified[-1].problem) == (True, True, "")
    assert replayed.state_digest == replayed.live_digest == verified[-1].state_digest
    assert (len(entries), entries[-1].digest) == (verified[-1].entries, replayed.head)
    assert replayed.jobs_by_state["queued"] == 20


async def test_history_of_what_never_was_is_not_found(served: Served) -> None:
    error = await refused(served.log.ReadHistory(log.ReadHistoryRequest(id="nope"), **EYES))
    assert (error.code(), details(error)[0]) == (grpc.StatusCode.NOT_FOUND, "no_history")


# --- agents and trainers


class Agent:
    """The agent's end of one stream."""

    def __init__(self, served: Served, node: str = "n1") -> None:
        self.node = node
        self.stream = served.nodes.Attach(metadata=AGENT["metadata"])

    async def attach(self) -> wire.DesiredSet:
        """Attach and wait for the first set."""
        attached = reports_pb2.NodeAttached(inventory=inventory())
        await self.say(attach=wire.AttachNode(node=self.node, incarnation=1, attached=attached))
        assert (await self.hear("welcome")).welcome.cell == "main"
        return (await self.hear("desired")).desired

    async def say(self, **kind: object) -> None:
        await self.stream.write(wire.AttachRequest(**kind))  # type: ignore[arg-type]

    async def hear(self, kind: str) -> wire.AttachResponse:
        """The next message of that kind; others are passed over."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                message: wire.AttachResponse = await read(self.stream)
                if message.WhichOneof("kind") == kind:
                    return message

    async def order(self) -> wire.RunOrder:
        """The next order."""
        while not (desired := (await self.hear("desired")).desired).changed:
            pass
        return desired.changed[0]


async def test_a_run_is_ordered_started_read_and_ended(served: Served) -> None:
    agent = Agent(served)
    assert (await agent.attach()).full
    job = await admitted(served, argv=["echo", "hi"])
    order = await agent.order()
    blob = await served.nodes.GetBlob(wire.GetBlobRequest(digest=order.launch), **AGENT)
    began = reports_pb2.RunBegan(run=order.run)
    await agent.say(
        report=reports_pb2.Report(node="n1", incarnation=1, sequence=1, run_began=began)
    )
    acked = (await agent.hear("report_ack")).report_ack
    reading = served.jobs.ReadLogs(jobs.ReadLogsRequest(job=job), **ALICE)
    asked = (await agent.hear("log_read")).log_read
    await agent.say(log_chunk=wire.LogChunk(call=asked.call, data=b"hi\n"))
    await agent.say(log_chunk=wire.LogChunk(call=asked.call, end=True))
    printed = b"".join([chunk.data async for chunk in reading])
    ended = reports_pb2.RunFinished(run=order.run, evidence=common_pb2.EVIDENCE_EXIT_STATUS)
    await agent.say(
        report=reports_pb2.Report(node="n1", incarnation=1, sequence=2, run_finished=ended)
    )
    while not (removed := (await agent.hear("desired")).desired).removed:
        pass
    shown = (await served.jobs.GetJob(jobs.GetJobRequest(job=job), **ALICE)).job
    agent.stream.cancel()
    assert common_pb2.Launch.FromString(blob.blob).argv == ["echo", "hi"]
    assert (acked.sequence, asked.run, printed) == (1, order.run, b"hi\n")
    assert (list(removed.removed), shown.state) == ([order.run], "succeeded")


async def test_who_follows_a_job_before_it_runs_is_there_from_its_first_line(
    served: Served,
) -> None:
    job = await admitted(served)
    reading = served.jobs.ReadLogs(jobs.ReadLogsRequest(job=job, follow=True), **ALICE)
    agent = Agent(served)
    first = await agent.attach()
    order = first.changed[0] if first.changed else await agent.order()
    began = reports_pb2.RunBegan(run=order.run)
    await agent.say(
        report=reports_pb2.Report(node="n1", incarnation=1, sequence=1, run_began=began)
    )
    asked = (await agent.hear("log_read")).log_read
    await agent.say(log_chunk=wire.LogChunk(call=asked.call, data=b"first\n"))
    line = await read(reading)
    reading.cancel()
    cancelled = (await agent.hear("log_read")).log_read
    agent.stream.cancel()
    assert (asked.follow, line.data, cancelled.cancel) == (True, b"first\n", True)


async def test_a_beat_is_acknowledged(served: Served) -> None:
    agent = Agent(served)
    await agent.attach()
    await agent.say(beat=telemetry_pb2.Beat(node="n1", incarnation=1, sequence=9))
    ack = (await agent.hear("beat_ack")).beat_ack
    agent.stream.cancel()
    assert ack == wire.BeatAck(node="n1", sequence=9)


async def test_output_of_a_node_that_has_left_is_not_to_be_had_here(served: Served) -> None:
    agent = Agent(served)
    await agent.attach()
    job = await admitted(served)
    await agent.order()
    await agent.say(detach=wire.DetachNode(node="n1"))
    await agent.stream.done_writing()
    reading = served.jobs.ReadLogs(jobs.ReadLogsRequest(job=job), **ALICE)
    error = await refused(reading.read())
    assert details(error)[0] == "node_not_attached"


async def test_a_trainer_speaks_with_the_token_of_its_order_and_for_nothing_else(
    served: Served,
) -> None:
    agent = Agent(served)
    await agent.attach()
    job = await admitted(served)
    order = await agent.order()
    trainer = as_(order.token)
    said = training.ReportProgressRequest(
        progress=[telemetry_pb2.Progress(job=job, attempt=1, step=12)]
    )
    await served.training.ReportProgress(said, **trainer)
    shown = (await served.jobs.GetJob(jobs.GetJobRequest(job=job), **ALICE)).job
    advice = await served.training.GetAdvice(
        training.GetAdviceRequest(job=job, attempt=1), **trainer
    )
    said.progress[0].attempt = 2
    other = await refused(served.training.ReportProgress(said, **trainer))
    reading = await refused(served.jobs.GetJob(jobs.GetJobRequest(job=job), **trainer))
    agent.stream.cancel()
    assert (shown.seen_step, advice.durable_step) == (12, -1)
    assert (details(other)[0], details(reading)[0]) == ("other_attempt", "role_missing")


async def test_a_blob_that_is_not_kept_is_not_found(served: Served) -> None:
    request = wire.GetBlobRequest(digest=blob_digest(b"never stored"))
    error = await refused(served.nodes.GetBlob(request, **AGENT))
    assert (error.code(), details(error)[0]) == (grpc.StatusCode.NOT_FOUND, "unknown_blob")


# --- the rest of the fleet


async def test_queues_and_nodes_are_managed(served: Served) -> None:
    agent = Agent(served)
    await agent.attach()
    lab = requests_pb2.ApplyQueue(
        queue="lab", parent="default", device_limit=2, cpu_milli_limit=-1, job_limit=-1
    )
    await served.queues.ApplyQueue(queues.ApplyQueueRequest(queue=lab), **ROOT)
    shown = await served.queues.ListQueues(queues.ListQueuesRequest(), **EYES)
    await served.fleet.CordonNode(fleet.CordonNodeRequest(node="n1", message="fan"), **ROOT)
    node = (await served.fleet.GetNode(fleet.GetNodeRequest(node="n1"), **EYES)).node
    listed = await served.fleet.ListNodes(fleet.ListNodesRequest(), **EYES)
    agent.stream.cancel()
    assert [queue.queue for queue in shown.queues] == ["default", "lab"]
    assert (node.service, node.message, listed.total) == ("cordoned", "fan", 1)


async def test_health_answers_without_a_token_and_reflection_with_one(served: Served) -> None:
    health: Any = health_pb2_grpc.HealthStub(served.channel)
    request = health_pb2.HealthCheckRequest(service=SERVICES[0])
    status = (await health.Check(request, timeout=WITHIN_S)).status
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(served.channel)  # type: ignore[arg-type]
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    call = reflection.ServerReflectionInfo(iter([ask]), **EYES)
    names = {each.name for each in (await call.read()).list_services_response.service}
    call.cancel()
    stranger = reflection.ServerReflectionInfo(iter([ask]), timeout=WITHIN_S)
    error = await refused(stranger.read())
    assert status == health_pb2.HealthCheckResponse.SERVING
    assert set(SERVICES) <= names
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_calls_writes_and_the_fold_are_measured(served: Served) -> None:
    await admitted(served)
    await refused(served.jobs.GetJob(jobs.GetJobRequest(job="nope"), **ALICE))
    metrics = await asyncio.to_thread(fetched, f"http://{served.monitor}/metrics")
    ready = await asyncio.to_thread(fetched, f"http://{served.monitor}/readyz")
    lines = metrics.splitlines()
    prefix = "tidemill_gateway_requests_total"
    assert f'{prefix}{{code="OK",method="JobService/SubmitJob"}} 1.0' in lines
    assert f'{prefix}{{code="NOT_FOUND",method="JobService/GetJob"}} 1.0' in lines
    assert "tidemill_gateway_jobs 1.0" in lines
    assert float(value_of(lines, "tidemill_gateway_write_records_sum")) >= 1
    assert float(value_of(lines, "tidemill_gateway_log_age_seconds")) < WITHIN_S
    assert ready == "ready\n"


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WITHIN_S) as response:
        return str(response.read().decode())


def value_of(lines: list[str], name: str) -> str:
    (line,) = [each for each in lines if each.startswith(f"{name} ")]
    return line.rpartition(" ")[2]
