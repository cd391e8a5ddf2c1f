"""How jobs, nodes, queues and entries look in lists, and one job in full. Pure functions from views to text.

It must never call the cell or print.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tidemill.cli.output import Column, Listing, age, moment, size, span
from tidemill.v1 import (
    common_pb2 as common_pb,
)
from tidemill.v1 import (
    job_service_pb2 as job_pb,
)
from tidemill.v1 import (
    views_pb2,
)

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
STATES: Final = (
    "queued",
    "held",
    "starting",
    "running",
    "stopping",
    "succeeded",
    "failed",
    "cancelled",
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _cores(milli: int) -> str:
    return f"{milli / 1000:g}"


# ---------------------------------------------------------------- jobs


def shape(spec: common_pb.JobSpec) -> str:
    """What it asks for: "2x8 H100" is two nodes with eight devices each; "4 cpu" needs no device."""
    parts = []
    for role in spec.roles:
        need = role.resources
        models = "|".join(need.device_models)
        amount = (
            f"{need.devices} {models or 'gpu'}" if need.devices else f"{_cores(need.cpu_milli)} cpu"
        )
        parts.append(f"{role.count}x{amount}" if role.count > 1 else amount)
    return " + ".join(parts)


def progress(job: views_pb2.JobView) -> str:
    """The newest step seen, and the newest that is safe."""
    if job.seen_step < 0 or not job.seen_at_ms:
        return f"{job.durable_step} safe" if job.durable_step > 0 else ""
    return (
        f"{job.seen_step} ({job.durable_step} safe)" if job.durable_step > 0 else str(job.seen_step)
    )


def why(job: views_pb2.JobView) -> str:
    """The reason in one line."""
    text = job.reason.message or job.reason.code.replace("_", " ")
    return " ".join(text.split())


def reason_text(reason: common_pb.Reason) -> str:
    """For people, with the code for programs beside it."""
    if not reason.message:
        return reason.code.replace("_", " ")
    return f"{reason.message} ({reason.code})"


def job_age(job: views_pb2.JobView) -> str:
    return age(job.changed_at_ms or job.admitted_at_ms, now_ms())


JOBS: Final[Listing[views_pb2.JobView]] = Listing(
    columns=(
        Column("ID", lambda job: job.job),
        Column(
            "NUMBER", lambda job: str(job.number), lambda job: job.number, wide=True, right=True
        ),
        Column("NAME", lambda job: job.spec.name, drop=1, least=16),
        Column("STATE", lambda job: job.state, state=True),
        Column("FOR", job_age, lambda job: job.changed_at_ms, drop=2, right=True),
        Column("QUEUE", lambda job: job.spec.queue, drop=3),
        Column("NEEDS", lambda job: shape(job.spec), drop=4),
        Column("STEP", progress, lambda job: job.seen_step, drop=5, right=True),
        Column(
            "TRY", lambda job: str(job.attempt or ""), lambda job: job.attempt, drop=6, right=True
        ),
        Column(
            "PRIORITY",
            lambda job: str(job.spec.priority),
            lambda job: job.spec.priority,
            wide=True,
            right=True,
        ),
        Column("BY", lambda job: job.by, wide=True),
        Column(
            "ADMITTED",
            lambda job: moment(job.admitted_at_ms),
            lambda job: job.admitted_at_ms,
            wide=True,
        ),
        Column("REASON", why, least=30),
    ),
    name=lambda job: job.job,
    nothing="no jobs; `tidemill jobs --all` includes ended ones",
)


def job_lines(job: views_pb2.JobView) -> Iterator[tuple[str, str]]:
    """The facts of one job as (label, text)."""
    yield "job", f"{job.job}  (number {job.number})"
    yield "name", job.spec.name
    yield "state", f"{job.state} for {job_age(job)}"
    if job.reason.code:
        yield "reason", reason_text(job.reason)
    yield "queue", f"{job.spec.queue}, priority {job.spec.priority}"
    yield "needs", shape(job.spec)
    yield "by", job.by
    yield "admitted", moment(job.admitted_at_ms)
    if job.finished_at_ms:
        yield (
            "ended",
            f"{moment(job.finished_at_ms)}, {span(job.finished_at_ms - job.admitted_at_ms)} after admission",
        )
    if progress(job):
        pace = f", {job.step_us / 1e6:.3g} s a step" if job.step_us else ""
        yield "step", progress(job) + pace
    if job.metrics:
        yield (
            "metrics",
            "  ".join(f"{name} {job.metrics[name]:.6g}" for name in sorted(job.metrics)),
        )
    flags = [name for name in ("overlap_safe", "held") if getattr(job.spec, name)]
    if flags:
        yield "flags", ", ".join(flags).replace("_", " ")


def _ran(attempt: views_pb2.AttemptView) -> str:
    if not attempt.started_at_ms:
        return ""
    return span(max(0, (attempt.ended_at_ms or now_ms()) - attempt.started_at_ms))


def _nodes(attempt: views_pb2.AttemptView) -> str:
    nodes = sorted({run.node for run in attempt.runs})
    return (
        ",".join(nodes) if len(nodes) <= 3 else f"{nodes[0]}, {nodes[1]} and {len(nodes) - 2} more"
    )


def _exit(run: views_pb2.RunView) -> str:
    if run.signal:
        return f"signal {run.signal}"
    return str(run.exit_code) if run.state == "ended" else ""


ATTEMPTS: Final[Listing[views_pb2.AttemptView]] = Listing(
    columns=(
        Column("ATTEMPT", lambda attempt: str(attempt.attempt), right=True),
        Column("STATE", lambda attempt: attempt.outcome or attempt.state, state=True),
        Column("CAUSE", lambda attempt: attempt.cause.replace("_", " ")),
        Column(
            "FROM STEP",
            lambda attempt: str(attempt.resume.step) if attempt.resume.uri else "start",
            right=True,
        ),
        Column("STARTED", lambda attempt: moment(attempt.started_at_ms), drop=2),
        Column("RAN", _ran, right=True),
        Column("NODES", _nodes, least=12),
        Column("MESSAGE", lambda attempt: attempt.message, least=16),
    ),
    name=lambda attempt: str(attempt.attempt),
    nothing="",
)

RUNS: Final[Listing[views_pb2.RunView]] = Listing(
    columns=(
        Column("RANK", lambda run: str(run.rank), right=True),
        Column("STATE", lambda run: run.state, state=True),
        Column("NODE", lambda run: run.node),
        Column("DEVICES", lambda run: ",".join(str(grant.index) for grant in run.devices), drop=1),
        Column("EXIT", _exit),
        Column("KNOWN BY", lambda run: run.evidence.replace("_", " "), drop=2),
        Column("MESSAGE", lambda run: run.message, least=16),
    ),
    name=lambda run: run.run,
    nothing="",
)

CHECKPOINTS: Final[Listing[views_pb2.CheckpointView]] = Listing(
    columns=(
        Column("STEP", lambda saved: str(saved.step), right=True),
        Column("STATE", lambda saved: saved.state, state=True),
        Column("ATTEMPT", lambda saved: str(saved.attempt), right=True, drop=1),
        Column("SIZE", lambda saved: size(saved.bytes) if saved.bytes else "", right=True),
        Column(
            "SAVED",
            lambda saved: f"{age(saved.saved_at_ms, now_ms())} ago" if saved.saved_at_ms else "",
        ),
        Column(
            "TOOK",
            lambda saved: f"{saved.save_ms / 1000:.3g}s" if saved.save_ms else "",
            right=True,
            drop=2,
        ),
        Column("REACH", lambda saved: saved.reach, drop=3),
        Column("WHERE", lambda saved: saved.uri, drop=4, least=24),
    ),
    name=lambda saved: str(saved.step),
    nothing="",
)

HISTORY: Final[Listing[job_pb.HistoryLine]] = Listing(
    columns=(
        Column(
            "OFFSET", lambda line: str(line.offset), lambda line: line.offset, right=True, drop=2
        ),
        Column("TIME", lambda line: moment(line.at_ms), lambda line: line.at_ms),
        Column("TERM", lambda line: str(line.term), lambda line: line.term, wide=True, right=True),
        Column("FACT", lambda line: line.fact, drop=1),
        Column("BY", lambda line: line.by, wide=True),
        Column("WHAT", lambda line: line.text, least=24),
    ),
    name=lambda line: str(line.offset),
    nothing="nothing is recorded",
)


# ---------------------------------------------------------------- nodes


def node_state(node: views_pb2.NodeView) -> str:
    """Liveness, and what an operator decided about it."""
    service = "" if node.service in {"", "in_service"} else f", {node.service}"
    return node.state + service


def devices(node: views_pb2.NodeView) -> str:
    """Free of all, by model: "6/8 H100"; simulated ones always say so."""
    models = Counter(device.model for device in node.devices)
    free = Counter(
        device.model
        for device in node.devices
        if not device.run and device.state in {"", "healthy", "degraded"}
    )
    lost = node.state == "lost"
    parts = [f"{'-' if lost else free[model]}/{models[model]} {model}" for model in sorted(models)]
    simulated = any(device.simulated for device in node.devices)
    return ", ".join(parts) + (" (simulated)" if simulated else "")


def node_trouble(node: views_pb2.NodeView) -> str:
    """The message of the node, and each device or NIC that is not well."""
    parts = [node.message] if node.message else []
    parts += [
        f"device {d.index} {d.state}: {d.message}"
        for d in node.devices
        if d.state not in {"", "healthy"}
    ]
    parts += [
        f"{nic.name} {nic.state}: {nic.message}"
        for nic in node.nics
        if nic.state not in {"", "healthy"}
    ]
    return "; ".join(parts)


NODES: Final[Listing[views_pb2.NodeView]] = Listing(
    columns=(
        Column("NODE", lambda node: node.node, least=20),
        Column("STATE", node_state, state=True),
        Column("FOR", lambda node: age(node.changed_at_ms, now_ms()), lambda node: node.changed_at_ms, drop=3, right=True),
        Column("FREE GPUS", devices),
        Column("FREE CPU", lambda node: f"{_cores(node.cpu_milli_free)}/{_cores(node.cpu_milli)}",
               lambda node: node.cpu_milli_free, drop=2, right=True),
        Column("FREE MEMORY", lambda node: f"{size(node.memory_mib_free * 2**20)}",
               lambda node: node.memory_mib_free, drop=4, right=True),
        Column("RUNS", lambda node: str(len(node.runs)), lambda node: len(node.runs), drop=1, right=True),
        Column("ADDRESS", lambda node: node.address, wide=True),
        Column("INCARNATION", lambda node: str(node.incarnation), lambda node: node.incarnation, wide=True, right=True),
        Column("MESSAGE", node_trouble, least=20),
    ),
    name=lambda node: node.node,
    nothing="no nodes; start one with `tidemilld agent`",
)  # fmt: skip


# ---------------------------------------------------------------- queues


def limit(used: int, most: int) -> str:
    return f"{used}/{most}" if most >= 0 else str(used)


def limit_cpu(queue: views_pb2.QueueView) -> str:
    used = _cores(queue.cpu_milli_used)
    return f"{used}/{_cores(queue.cpu_milli_limit)}" if queue.cpu_milli_limit >= 0 else used


def _limit(most: int) -> str:
    return str(most) if most >= 0 else "no limit"


QUEUES: Final[Listing[views_pb2.QueueView]] = Listing(
    columns=(
        Column("QUEUE", lambda queue: queue.queue),
        Column("PARENT", lambda queue: queue.parent, drop=1),
        Column("GPUS", lambda queue: limit(queue.devices_used, queue.device_limit), lambda queue: queue.devices_used, right=True),
        Column("GPU LIMIT", lambda queue: _limit(queue.device_limit), lambda queue: queue.device_limit, wide=True, right=True),
        Column("CPU", limit_cpu, lambda queue: queue.cpu_milli_used, drop=2, right=True),
        Column("RUNNING", lambda queue: str(queue.jobs_running), lambda queue: queue.jobs_running, right=True),
        Column("WAITING", lambda queue: str(queue.jobs_waiting), lambda queue: queue.jobs_waiting, right=True),
        Column("HELD", lambda queue: str(queue.jobs_held), lambda queue: queue.jobs_held, right=True),
        Column("JOB LIMIT", lambda queue: _limit(queue.job_limit), lambda queue: queue.job_limit, wide=True, right=True),
    ),
    name=lambda queue: queue.queue,
    nothing="no queues; make one with `tidemill apply FILE`",
)  # fmt: skip
