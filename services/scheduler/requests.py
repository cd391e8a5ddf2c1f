"""Requests: what a person or program asks. Each is answered exactly once: admitted, accepted or refused.

Who may ask for what is checked at the gateway; here, whether it makes sense now. An illegible one is parked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from services.scheduler import job_requests, node_requests, queue_requests, submissions
from services.scheduler.answers import Asked, RefusedError, accept, answered_before, asked, refuse
from services.scheduler.arrays import Arrays
from services.scheduler.draft import Draft
from services.scheduler.wire import NAME_CHARS, need, need_name, parse
from tidemill.v1 import requests_pb2

KEY_CHARS: Final = 320


def decide(draft: Draft, arrays: Arrays, stored: bytes) -> None:
    """Turn one record of <cell>.requests into facts; raises UnfitError."""
    request = parse(requests_pb2.Request, stored)
    need(0 < len(request.request) <= KEY_CHARS, "the request's key is missing or too long")
    need_name(request.principal.name, "the principal")
    kind = request.WhichOneof("kind")
    need(kind is not None, "a request of no kind that this version knows")
    assert kind is not None
    said = getattr(request, kind)
    draft.by = request.principal.name
    this = asked(request.request, said, _target(said))
    if answered_before(draft, this):
        return
    try:
        _grant(draft, arrays, this, said)
    except RefusedError as why:
        refuse(draft, this, why)


def _target(said: Any) -> str:
    """The object that the request names."""
    match said:
        case requests_pb2.AcceptInputGap():
            target = f"{said.topic}/{said.partition}"
        case requests_pb2.ApplyQueue() | requests_pb2.RemoveQueue():
            target = said.queue
        case _:
            target = said.node if hasattr(said, "node") else said.job
    assert isinstance(target, str)
    return target[:NAME_CHARS]


def _grant(draft: Draft, arrays: Arrays, this: Asked, said: Any) -> None:
    if isinstance(said, requests_pb2.SubmitJob):
        submissions.submit(draft, arrays, this, said)
        return
    fleet = _FLEET.get(type(said))
    if fleet is not None:
        fleet(draft, said)
    else:
        job_requests.decide(draft, arrays, said)
    accept(draft, this)


def _accept_gap(draft: Draft, said: requests_pb2.AcceptInputGap) -> None:
    """A leader that reads requests has met no gap; over one it stops, and `tidemilld gap accept` records the word."""
    position = draft.cluster.positions.get((said.topic, said.partition), 0)
    raise RefusedError(
        "bad_state",
        f"{said.topic[:64]}/{said.partition} is decided up to {position} and shows no gap: nothing needs skipping. A "
        "leader that meets a gap stops and says what to run",
    )


_FLEET: Final[dict[type, Callable[[Draft, Any], None]]] = {
    requests_pb2.ApplyQueue: queue_requests.apply,
    requests_pb2.RemoveQueue: queue_requests.remove,
    requests_pb2.CordonNode: node_requests.cordon,
    requests_pb2.UncordonNode: node_requests.uncordon,
    requests_pb2.DrainNode: node_requests.drain,
    requests_pb2.ConfirmNodeDead: node_requests.confirm_dead,
    requests_pb2.RemoveNode: node_requests.remove,
    requests_pb2.AcceptInputGap: _accept_gap,
}
