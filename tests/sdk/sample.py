"""A small cell as a gateway would show it, for tests of what the command line prints."""

from __future__ import annotations

import time

from tests.fakes.gateway import FakeGateway
from tidemill.v1 import (
    common_pb2 as common_pb,
)
from tidemill.v1 import (
    job_service_pb2 as job_pb,
)
from tidemill.v1 import (
    log_pb2,
    views_pb2,
)
from tidemill.v1 import (
    log_service_pb2 as log_pb,
)

NOON = 1_796_040_000_000  # 2026-11-30 12:00:00 UTC


def ago(seconds: int) -> int:
    """So long before now, in the middle of the unit that is shown."""
    return time.time_ns() // 1_000_000 - seconds * 1000


def spec(
    name: str, *, nodes: int = 1, gpus: int = 0, model: str = "", queue: str = "default"
) -> common_pb.JobSpec:
    models = [model] if model else []
    resources = common_pb.Resources(
        cpu_milli=4000, memory_mib=1024, devices=gpus, device_models=models
    )
    return common_pb.JobSpec(
        name=name, queue=queue, roles=[common_pb.Role(count=nodes, resources=resources)]
    )


def training() -> views_pb2.JobView:
    """A gang in its second attempt, with checkpoints."""
    job = views_pb2.JobView(
        job="kq3vz7m2ab5c", number=42, spec=spec("llama-pretrain", nodes=2, gpus=8, model="H100", queue="research"),
        by="user:ada", state="running", attempt=2, admitted_at_ms=NOON, changed_at_ms=ago(190), durable_step=400,
        seen_step=437, seen_at_ms=ago(1), step_us=1_250_000, offset=90,
    )  # fmt: skip
    job.metrics["loss"] = 1.875
    job.spec.overlap_safe = True
    manifest = common_pb.ResumePoint(
        step=400, uri="file:///shared/kq3vz7m2ab5c/a1/step-000000000400", attempt=1
    )
    for number in (1, 2):
        attempt = job.attempts.add(
            attempt=number, state="running", placed_at_ms=NOON + number * 60_000
        )
        attempt.started_at_ms = NOON + number * 60_000 + 5_000
        for rank in (0, 1):
            node = f"node-{rank + number}"
            run = attempt.runs.add(
                run=f"kq3vz7m2ab5c.{number}.{rank}", node=node, rank=rank, state="running"
            )
            run.devices.extend(common_pb.Grant(index=index, milli=1000) for index in range(8))
    first, second = job.attempts
    first.state, first.outcome, first.cause = "ended", "lost", "node_lost"
    first.message, first.ended_at_ms = "node-1 fell silent", NOON + 95_000
    second.started_at_ms, second.ended_at_ms = ago(190), 0
    second.resume.CopyFrom(manifest)
    for step, state in ((200, "removed"), (400, "durable")):
        saved = job.checkpoints.add(
            step=step, attempt=1, state=state, bytes=3 * 2**30, save_ms=2_500
        )
        saved.uri, saved.reach, saved.tier = (
            f"file:///shared/kq3vz7m2ab5c/a1/step-{step:012d}",
            "cell",
            "remote",
        )
        saved.saved_at_ms = ago(900)
    return job


def fill(gateway: FakeGateway) -> None:
    """Jobs on three nodes, two queues, and a log."""
    _fill_jobs(gateway)
    _fill_nodes(gateway)
    _fill_rest(gateway)


def _fill_jobs(gateway: FakeGateway) -> None:
    """A running gang, a waiting job, a held one and an ended one."""
    waiting = views_pb2.JobView(
        job="m4tte2xq7yzd", number=43, spec=spec("wide-job-with-a-long-name-for-a-table", nodes=4, gpus=8),
        by="user:bob", state="queued", admitted_at_ms=NOON, changed_at_ms=ago(7_500), seen_step=-1, offset=91,
    )  # fmt: skip
    waiting.reason.code, waiting.reason.missing = "no_room", 16
    waiting.reason.message = "needs 4 nodes with 8 devices each; 2 are free, 16 devices are missing"
    waiting.reason.blockers.extend(["kq3vz7m2ab5c"])
    held = views_pb2.JobView(
        job="p9crashloop1", number=44, spec=spec("crasher"), by="user:bob", state="held", attempt=3,
        admitted_at_ms=NOON, changed_at_ms=ago(150), seen_step=-1, offset=92,
    )  # fmt: skip
    held.reason.code, held.reason.message = (
        "crash_loop",
        "3 attempts without a new checkpoint; exit code 1",
    )
    ended = views_pb2.JobView(
        job="q1done0000aa", number=41, spec=spec("probe"), by="user:ada", state="succeeded", attempt=1,
        admitted_at_ms=NOON, changed_at_ms=ago(90_000), finished_at_ms=NOON + 65_000, seen_step=-1, offset=50,
    )  # fmt: skip
    gateway.jobs = {job.job: job for job in (training(), waiting, held, ended)}
    gateway.explained["m4tte2xq7yzd"] = job_pb.ExplainJobResponse(
        job=waiting, reason=waiting.reason, history=history()[:2]
    )


def _fill_nodes(gateway: FakeGateway) -> None:
    for number, state in ((1, "lost"), (2, "ready"), (3, "ready")):
        node = views_pb2.NodeView(
            node=f"node-{number}", incarnation=1, state=state, service="in_service", address=f"10.0.0.{number}",
            cpu_milli=64_000, cpu_milli_free=60_000, memory_mib=512 * 1024, memory_mib_free=511 * 1024,
            changed_at_ms=ago(600), simulated=True,
        )  # fmt: skip
        node.devices.extend(
            views_pb2.DeviceView(index=index, model="H100", state="healthy", simulated=True,
                                 run="kq3vz7m2ab5c.2.0" if number == 2 else "")
            for index in range(8)
        )  # fmt: skip
        gateway.nodes[node.node] = node
    gateway.nodes["node-1"].message = "silent for 15 s"
    sick = gateway.nodes["node-3"]
    sick.service = "cordoned"
    sick.devices[4].state, sick.devices[4].message = "faulty", "XID 79"


def _fill_rest(gateway: FakeGateway) -> None:
    gateway.queues = {
        "default": views_pb2.QueueView(queue="default", device_limit=-1, cpu_milli_limit=-1, job_limit=-1,
                                       jobs_waiting=1, jobs_held=1),
        "research": views_pb2.QueueView(queue="research", parent="default", device_limit=32, devices_used=16,
                                        cpu_milli_limit=256_000, cpu_milli_used=8_000, job_limit=100, jobs_running=1),
    }  # fmt: skip
    gateway.cell = views_pb2.CellView(
        cell="test", leader="sched-1", term=7, offset=92, version="0.1.0", nodes_ready=2, nodes=3, devices=24,
        devices_free=7, jobs_waiting=1, jobs_running=1, jobs_held=1, voided=2, simulated_devices=True,
    )  # fmt: skip
    gateway.lines = history()
    gateway.written["kq3vz7m2ab5c"] = [b"step 1\n", b"step 2\n"]
    gateway.entries = entries()
    gateway.verified = [
        log_pb.VerifyLogResponse(entries=50),
        log_pb.VerifyLogResponse(entries=95, accepted=93, voided=2, facts=310, offset=94, head=b"\xab" * 32,
                                 state_digest=b"\xcd" * 32, done=True, ok=True),
    ]  # fmt: skip
    gateway.replayed = log_pb.ReplayLogResponse(
        offset=92, at_ms=NOON, term=7, head=b"\xab" * 32, state_digest=b"\xcd" * 32, live_digest=b"\xcd" * 32,
        entries=93, facts=310, jobs_by_state={"running": 1, "queued": 1}, nodes_by_state={"ready": 2, "lost": 1},
    )  # fmt: skip


def history() -> list[job_pb.HistoryLine]:
    return [
        job_pb.HistoryLine(offset=12, at_ms=NOON, term=6, fact="JobAdmitted", by="user:ada", text="admitted as number 42"),
        job_pb.HistoryLine(offset=15, at_ms=NOON + 60_000, term=6, fact="GangPlaced", text="attempt 1 on node-1, node-2"),
        job_pb.HistoryLine(offset=80, at_ms=NOON + 95_000, term=7, fact="NodeLost", text="node-1 fell silent"),
    ]  # fmt: skip


def entries() -> list[log_pb.ReadEntriesResponse]:
    accepted = log_pb.ReadEntriesResponse(
        offset=90, accepted=True, digest=b"\x12" * 32, lines=history()[:1]
    )
    accepted.entry.CopyFrom(log_pb2.Entry(term=7, at_ms=NOON))
    void = log_pb.ReadEntriesResponse(offset=91, accepted=False, digest=b"\x34" * 32)
    void.void_reason = "prev is not the head"
    void.entry.CopyFrom(log_pb2.Entry(term=6, at_ms=NOON + 1_000))
    return [accepted, void]
