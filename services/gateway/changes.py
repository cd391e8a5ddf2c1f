"""Calls that change something other than by submitting: what each asks the leader, of what, and how it is answered.

Permission is checked here, against the fold; whether the change is legal is the leader's to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from google.protobuf.message import Message

from services.gateway.auth import Caller, may_change
from services.gateway.names import find_jobs, find_node
from services.gateway.reads import Reads
from statemachines.job import Job
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import queue_service_pb2 as queues
from tidemill.v1 import requests_pb2 as wishes

JobChange: TypeAlias = (
    jobs.CancelJobRequest | jobs.HoldJobRequest | jobs.ReleaseJobRequest | jobs.RequeueJobRequest
)
NodeChange: TypeAlias = (
    fleet.CordonNodeRequest
    | fleet.UncordonNodeRequest
    | fleet.DrainNodeRequest
    | fleet.ConfirmNodeDeadRequest
    | fleet.RemoveNodeRequest
)
QueueChange: TypeAlias = queues.ApplyQueueRequest | queues.RemoveQueueRequest
ChangeRequest: TypeAlias = JobChange | NodeChange | QueueChange


class Change(msgspec.Struct, frozen=True):
    """`kind` is the name in the oneof of Request; `accepted` makes the answer from the fold, or raises Refusal."""

    kind: str
    wish: Message
    target: str
    accepted: Callable[[], Message]


def change_of(reads: Reads, caller: Caller, request: ChangeRequest) -> Change:
    """What the call asks for; raises Refusal for what is not there or not the caller's."""
    if isinstance(request, JobChange):
        return _of_job(reads, caller, request)
    if isinstance(request, NodeChange):
        return _of_node(reads, request)
    return _of_queue(reads, request)


def _of_job(reads: Reads, caller: Caller, request: JobChange) -> Change:
    name, found = find_jobs(reads.cluster, request.job)
    for each in found:
        may_change(caller, owner=each.by, what=f"job {each.id}")
    job, message = found[0], getattr(request, "message", "")
    match request:
        case jobs.CancelJobRequest():
            cancel = wishes.CancelJob(job=name, message=message)
            return _job("cancel_job", cancel, reads, name, job, jobs.CancelJobResponse)
        case jobs.HoldJobRequest():
            hold = wishes.HoldJob(job=name, message=message)
            return _job("hold_job", hold, reads, name, job, jobs.HoldJobResponse)
        case jobs.ReleaseJobRequest():
            release = wishes.ReleaseJob(job=name)
            return _job("release_job", release, reads, name, job, jobs.ReleaseJobResponse)
        case jobs.RequeueJobRequest():
            requeue = wishes.RequeueJob(job=name, message=message, save_first=request.save_first)
            return _job("requeue_job", requeue, reads, name, job, jobs.RequeueJobResponse)


def _job(
    kind: str, wish: Message, reads: Reads, name: str, job: Job, answer: Callable[..., Message]
) -> Change:
    """Of an array the first job that is still here is shown."""
    return Change(kind, wish, name, lambda: answer(job=reads.job(job.id)))


def _of_node(reads: Reads, request: NodeChange) -> Change:
    node = find_node(reads.cluster, request.node).id
    match request:
        case fleet.CordonNodeRequest(message=message):
            cordon = wishes.CordonNode(node=node, message=message)
            return _node("cordon_node", cordon, reads, node, fleet.CordonNodeResponse)
        case fleet.UncordonNodeRequest():
            uncordon = wishes.UncordonNode(node=node)
            return _node("uncordon_node", uncordon, reads, node, fleet.UncordonNodeResponse)
        case fleet.DrainNodeRequest(message=message, within_ms=within_ms):
            drain = wishes.DrainNode(node=node, message=message, within_ms=within_ms)
            return _node("drain_node", drain, reads, node, fleet.DrainNodeResponse)
        case fleet.ConfirmNodeDeadRequest(message=message):
            dead = wishes.ConfirmNodeDead(node=node, message=message)
            return _node("confirm_node_dead", dead, reads, node, fleet.ConfirmNodeDeadResponse)
        case fleet.RemoveNodeRequest():
            remove = wishes.RemoveNode(node=node)
            return Change("remove_node", remove, node, fleet.RemoveNodeResponse)


def _node(
    kind: str, wish: Message, reads: Reads, node: str, answer: Callable[..., Message]
) -> Change:
    return Change(kind, wish, node, lambda: answer(node=reads.node(node)))


def _of_queue(reads: Reads, request: QueueChange) -> Change:
    match request:
        case queues.ApplyQueueRequest(queue=applied):
            return Change(
                "apply_queue",
                applied,
                applied.queue,
                lambda: queues.ApplyQueueResponse(queue=reads.queue(applied.queue)),
            )
        case queues.RemoveQueueRequest(queue=queue):
            remove = wishes.RemoveQueue(queue=queue)
            return Change("remove_queue", remove, queue, queues.RemoveQueueResponse)
