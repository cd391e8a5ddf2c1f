"""Views: entities of the fold as the messages that people and programs see. Pure; nothing is remembered here.

A view says what the log said at its `offset`. Progress numbers beside it are telemetry of this gateway.
"""

from __future__ import annotations

from typing import Final

from services.gateway.progress import ProgressTable, Seen
from services.runtime.codec import encode_value
from statemachines.attempt import Attempt
from statemachines.checkpoint import Checkpoint
from statemachines.cluster import Cluster
from statemachines.device import Device, DeviceState
from statemachines.job import ENDED, Job
from statemachines.node import Node, NodeState
from statemachines.queue import Queue
from statemachines.run import Run
from statemachines.values import Reason
from tidemill.v1 import common_pb2, views_pb2

# A list or a watch shows the runs of a job's newest attempt when they are no more than these.
RUNS_IN_LISTS: Final = 16


def job_view(cluster: Cluster, progress: ProgressTable, job: Job) -> views_pb2.JobView:
    """Everything known of a job: all kept attempts with their runs, all checkpoints."""
    view = _job(cluster, job, progress.of(job.id))
    for attempt in cluster.attempts.get(job.id, ()):
        runs = [cluster.runs[run] for run in attempt.runs]
        view.attempts.append(_attempt(attempt, runs))
    view.checkpoints.extend([_checkpoint(each) for each in cluster.checkpoints.get(job.id, ())])
    return view


def job_line(cluster: Cluster, progress: ProgressTable, job: Job) -> views_pb2.JobView:
    """What a list or a watch shows: the newest attempt, and its runs when there are few."""
    view = _job(cluster, job, progress.of(job.id))
    attempt = cluster.attempt(job.id)
    if attempt is not None:
        few = len(attempt.runs) <= RUNS_IN_LISTS
        runs = [cluster.runs[run] for run in attempt.runs] if few else []
        view.attempts.append(_attempt(attempt, runs))
    return view


def _job(cluster: Cluster, job: Job, seen: Seen | None) -> views_pb2.JobView:
    view = views_pb2.JobView(
        job=job.id,
        number=job.number,
        spec=common_pb2.JobSpec(**encode_value(job.spec)),
        by=job.by,
        state=job.state,
        reason=reason_view(job.reason),
        attempt=job.attempt,
        admitted_at_ms=job.admitted_at_ms,
        changed_at_ms=job.changed_at_ms,
        finished_at_ms=job.changed_at_ms if job.state in ENDED else 0,
        durable_step=job.durable_step,
        seen_step=-1,
        offset=cluster.offset,
        reason_since_ms=job.reason_at_ms,
    )
    if seen is not None:
        view.seen_step, view.seen_at_ms, view.step_us = seen.step, seen.at_ms, seen.step_us
        view.metrics.update(seen.metrics)
    return view


def reason_view(reason: Reason | None) -> common_pb2.Reason | None:
    """None stays None: the field is not set."""
    return None if reason is None else common_pb2.Reason(**encode_value(reason))


def _attempt(attempt: Attempt, runs: list[Run]) -> views_pb2.AttemptView:
    return views_pb2.AttemptView(
        attempt=attempt.number,
        state=attempt.state,
        placed_at_ms=attempt.placed_at_ms,
        started_at_ms=attempt.started_at_ms,
        ended_at_ms=attempt.ended_at_ms,
        resume=common_pb2.ResumePoint(**encode_value(attempt.resume)),
        resumed_step=attempt.resumed_step,
        outcome=attempt.outcome or "",
        cause=attempt.cause or attempt.stop_cause or "",
        message=attempt.message or attempt.stop_message,
        runs=[_run(run) for run in runs],
    )


def _run(run: Run) -> views_pb2.RunView:
    return views_pb2.RunView(
        run=run.id,
        node=run.node,
        rank=run.rank,
        role=run.role,
        state=run.state,
        devices=[common_pb2.Grant(index=grant.index, milli=grant.milli) for grant in run.devices],
        exit_code=run.exit_code,
        signal=run.signal,
        evidence=run.evidence or "",
        message=run.message,
    )


def _checkpoint(checkpoint: Checkpoint) -> views_pb2.CheckpointView:
    return views_pb2.CheckpointView(
        step=checkpoint.step,
        attempt=checkpoint.attempt,
        state=checkpoint.state,
        uri=checkpoint.uri,
        bytes=checkpoint.bytes,
        saved_at_ms=checkpoint.saved_at_ms,
        save_ms=checkpoint.save_ms,
        tier=checkpoint.tier or "",
        reach=checkpoint.reach or "",
        by_marker=checkpoint.by_marker,
    )


def node_view(cluster: Cluster, node: Node) -> views_pb2.NodeView:
    """A node with what is free on it."""
    usage, inventory = cluster.usage[node.id], node.inventory
    return views_pb2.NodeView(
        node=node.id,
        incarnation=node.incarnation,
        state=node.state,
        service=node.service,
        address=inventory.address,
        cpu_milli=inventory.cpu_milli,
        cpu_milli_free=inventory.cpu_milli - usage.cpu_milli,
        memory_mib=inventory.memory_mib,
        memory_mib_free=inventory.memory_mib - usage.memory_mib,
        devices=[_device(each, usage.holders.get(each.spec.index, "")) for each in node.devices],
        nics=[
            views_pb2.NicView(
                name=nic.spec.name,
                state=nic.state,
                message=nic.reason.message if nic.reason else "",
            )
            for nic in node.nics
        ],
        runs=list(usage.runs),
        changed_at_ms=node.changed_at_ms,
        message=node.message,
        labels=dict(inventory.labels),
        simulated=any(device.spec.simulated for device in node.devices),
    )


def _device(device: Device, holder: str) -> views_pb2.DeviceView:
    return views_pb2.DeviceView(
        index=device.spec.index,
        model=device.spec.model,
        state=device.state,
        run=holder,
        simulated=device.spec.simulated,
        message=device.reason.message if device.reason else "",
    )


def queue_view(cluster: Cluster, queue: Queue) -> views_pb2.QueueView:
    """A queue with what it and those below it hold."""
    usage = cluster.queue_usage[queue.id]
    return views_pb2.QueueView(
        queue=queue.id,
        parent=queue.parent,
        device_limit=queue.device_limit,
        devices_used=usage.devices,
        cpu_milli_limit=queue.cpu_milli_limit,
        cpu_milli_used=usage.cpu_milli,
        job_limit=queue.job_limit,
        jobs_waiting=usage.waiting,
        jobs_running=usage.live,
        jobs_held=usage.held,
    )


def cell_view(cluster: Cluster, *, version: str, lag_ms: int) -> views_pb2.CellView:
    """The cell in numbers; a device is free when it is healthy enough, its node is open and nobody holds it."""
    devices = free = ready = 0
    simulated = False
    for node in cluster.nodes.values():
        devices += len(node.devices)
        ready += node.state is NodeState.READY
        simulated = simulated or any(device.spec.simulated for device in node.devices)
        if node.open:
            usable = [each for each in node.devices if each.state is not DeviceState.FAULTY]
            holders = cluster.usage[node.id].holders
            free += sum(device.spec.index not in holders for device in usable)
    roots = [cluster.queue_usage[queue.id] for queue in cluster.queues.values() if not queue.parent]
    return views_pb2.CellView(
        cell=cluster.cell,
        leader=cluster.leader,
        term=cluster.term,
        offset=cluster.offset,
        head=cluster.head,
        at_ms=cluster.at_ms,
        voided=cluster.voided,
        parked=cluster.parked,
        incident=cluster.incident.message if cluster.incident else "",
        nodes_ready=ready,
        nodes=len(cluster.nodes),
        devices=devices,
        devices_free=free,
        jobs_waiting=sum(usage.waiting for usage in roots),
        jobs_running=sum(usage.live for usage in roots),
        jobs_held=sum(usage.held for usage in roots),
        version=version,
        lag_ms=lag_ms,
        simulated_devices=simulated,
    )
