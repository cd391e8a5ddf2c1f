"""How a request is answered: exactly once, by its key. A repeat gets the first answer, which the fold already has.

The gateway answers from the fold, so a repeat with the same content records nothing. Other content under a used key is
refused under a key of its own, and the first answer stays.
"""

from __future__ import annotations

from google.protobuf.message import Message

from services.runtime import ids
from services.scheduler.draft import Draft
from statemachines.facts import RequestAccepted, RequestRefused
from statemachines.values import Value


class RefusedError(Exception):
    """The request is not allowed or makes no sense. Raised before any fact of it is recorded."""

    def __init__(self, code: str, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.code, self.field, self.message = code, field, message


class Asked(Value):
    """What identifies a request in its answer."""

    key: str
    digest: bytes
    kind: str
    target: str


def asked(key: str, kind: Message, target: str) -> Asked:
    """The identity of a request; `kind` is the message in its oneof."""
    return Asked(key, ids.request_digest(kind), kind.DESCRIPTOR.name, target)


def answered_before(draft: Draft, request: Asked) -> bool:
    """Whether its key has an answer; content other than that of the first is refused beside it."""
    answers = draft.cluster.answers
    first = answers.get(request.key)
    if first is None:
        return False
    beside = ids.reused_key(request.key, request.digest)
    if first.digest == request.digest or beside in answers:
        draft.ignore("repeated_request")
        return True
    message = f"the request id of {request.key} was used before, for something else: use a new one"
    draft.record(
        RequestRefused(
            beside, request.digest, request.kind, request.target, "request_id_reused", "", message
        )
    )
    return True


def accept(draft: Draft, request: Asked) -> None:
    """The wish is granted; recorded after the facts that grant it."""
    draft.record(RequestAccepted(request.key, request.digest, request.kind, request.target))


def refuse(draft: Draft, request: Asked, why: RefusedError) -> None:
    """The wish is not granted, and what to do about it."""
    draft.record(
        RequestRefused(
            request.key, request.digest, request.kind, request.target, why.code, why.field, why.message
        )
    )  # fmt: skip
