"""Who calls, and what they may do: roles by method, and whose object a call may touch. Denied unless allowed here.

Pure: tokens and keys are given, nothing is read. A job token opens TrainingService for its own (job, attempt) alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from services.gateway.refusal import Refusal, Status
from services.runtime.tokens import Grantee, Role, check_job_token, token_digest

# Beside the roles of a tokens file: the holder of a job token.
TRAINER: Final = "trainer"
# Tokens are far shorter; longer ones are not even hashed.
TOKEN_CHARS_MAX: Final = 512

_LOOK: Final = frozenset({Role.ADMIN.value, Role.USER.value, Role.VIEWER.value})
_CHANGE: Final = frozenset({Role.ADMIN.value, Role.USER.value})
_OPERATE: Final = frozenset({Role.ADMIN.value})
_AGENT: Final = frozenset({Role.NODE.value})
_TRAIN: Final = frozenset({TRAINER})
_KNOWN: Final = frozenset({*Role, TRAINER})

# Every method that is served, and who may call it; a method that is not here does not exist.
METHODS: Final[Mapping[str, frozenset[str]]] = {
    "/tidemill.v1.JobService/SubmitJob": _CHANGE,
    "/tidemill.v1.JobService/SubmitJobs": _CHANGE,
    "/tidemill.v1.JobService/CancelJob": _CHANGE,
    "/tidemill.v1.JobService/HoldJob": _CHANGE,
    "/tidemill.v1.JobService/ReleaseJob": _CHANGE,
    "/tidemill.v1.JobService/RequeueJob": _CHANGE,
    "/tidemill.v1.JobService/GetJob": _LOOK,
    "/tidemill.v1.JobService/ListJobs": _LOOK,
    "/tidemill.v1.JobService/WatchJobs": _LOOK,
    "/tidemill.v1.JobService/ExplainJob": _LOOK,
    "/tidemill.v1.JobService/ReadLogs": _LOOK,
    "/tidemill.v1.QueueService/ApplyQueue": _OPERATE,
    "/tidemill.v1.QueueService/RemoveQueue": _OPERATE,
    "/tidemill.v1.QueueService/ListQueues": _LOOK,
    "/tidemill.v1.FleetService/ListNodes": _LOOK,
    "/tidemill.v1.FleetService/GetNode": _LOOK,
    "/tidemill.v1.FleetService/CordonNode": _OPERATE,
    "/tidemill.v1.FleetService/UncordonNode": _OPERATE,
    "/tidemill.v1.FleetService/DrainNode": _OPERATE,
    "/tidemill.v1.FleetService/ConfirmNodeDead": _OPERATE,
    "/tidemill.v1.FleetService/RemoveNode": _OPERATE,
    "/tidemill.v1.FleetService/GetCell": _LOOK,
    "/tidemill.v1.NodeService/Attach": _AGENT,
    "/tidemill.v1.NodeService/GetBlob": _AGENT,
    "/tidemill.v1.TrainingService/ReportProgress": _TRAIN,
    "/tidemill.v1.TrainingService/ReportCheckpoint": _TRAIN,
    "/tidemill.v1.TrainingService/GetAdvice": _TRAIN,
    "/tidemill.v1.LogService/ReadEntries": _LOOK,
    "/tidemill.v1.LogService/VerifyLog": _LOOK,
    "/tidemill.v1.LogService/ReplayLog": _LOOK,
    "/tidemill.v1.LogService/ReadHistory": _LOOK,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _KNOWN,
}
# For probes, which hold no token; they tell nothing but whether we serve.
OPEN_METHODS: Final = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})


class Caller(msgspec.Struct, frozen=True):
    """An authenticated caller. `attempt` is set for a trainer: the only (job, attempt) it may speak for."""

    principal: str
    method: str
    roles: frozenset[str]
    nodes: frozenset[str] = frozenset()
    attempt: tuple[str, int] | None = None


def authenticate(authorization: str, grantees: Mapping[str, Grantee], cell_key: bytes) -> Caller:
    """Who shows this `authorization` header; raises Refusal."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Refusal(
            Status.UNAUTHENTICATED,
            "no_token",
            "send a token in the metadata `authorization: Bearer TOKEN`; "
            "`tidemill` takes it from TIDEMILL_TOKEN",
        )
    if len(token) <= TOKEN_CHARS_MAX:
        grantee = grantees.get(token_digest(token))
        if grantee is not None:
            method = "node-token" if Role.NODE in grantee.roles else "token"
            roles = frozenset([role.value for role in grantee.roles])
            return Caller(grantee.principal, method, roles, grantee.nodes)
        attempt = check_job_token(cell_key, token)
        if attempt is not None:
            return Caller(f"job:{attempt[0]}", "job-token", _TRAIN, attempt=attempt)
    raise Refusal(
        Status.UNAUTHENTICATED,
        "unknown_token",
        "this token is not known here: it was revoked, or belongs to another cell",
    )


def authorise(caller: Caller, method: str) -> None:
    """Raises Refusal unless one of the caller's roles may call the method."""
    allowed = METHODS.get(method, frozenset())
    if not caller.roles & allowed:
        want = " or ".join(sorted(allowed)) or "nobody"
        raise Refusal(
            Status.PERMISSION_DENIED,
            "role_missing",
            f"{caller.principal} may not call {method.rpartition('/')[2]}: that takes role {want}",
        )


def may_change(caller: Caller, *, owner: str, what: str) -> None:
    """Raises Refusal unless the object is the caller's own, or the caller is an admin."""
    if Role.ADMIN.value not in caller.roles and caller.principal != owner:
        raise Refusal(
            Status.PERMISSION_DENIED,
            "not_owner",
            f"{what} belongs to {owner}; {caller.principal} may change only its own (role admin: all)",
        )


def may_read_output(caller: Caller, *, owner: str, what: str) -> None:
    """Raises Refusal for a user who is not the owner: what a job prints is not for everyone."""
    if Role.VIEWER.value not in caller.roles:
        may_change(caller, owner=owner, what=f"the output of {what}")


def may_attach(caller: Caller, node: str) -> None:
    """Raises Refusal unless the token is for this node, or for any."""
    if caller.nodes and node not in caller.nodes:
        raise Refusal(
            Status.PERMISSION_DENIED,
            "other_node",
            f"this token may attach {', '.join(sorted(caller.nodes))}, not {node}",
        )


def may_speak_for(caller: Caller, job: str, attempt: int) -> None:
    """Raises Refusal unless the trainer's token is of exactly this (job, attempt); attempt 0 is any of the job."""
    if caller.attempt is None or job != caller.attempt[0] or attempt not in {0, caller.attempt[1]}:
        raise Refusal(
            Status.PERMISSION_DENIED,
            "other_attempt",
            f"this token is not of job {job}, attempt {attempt}: use TIDEMILL_TOKEN of that attempt",
        )
