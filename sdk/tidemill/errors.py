"""What can go wrong for a caller: each error says what, why, and the next command.

It must never import gRPC when it is loaded: the command line shows help without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import grpc


class TidemillError(Exception):
    """The base of all; `exit_code` is what the command line ends with."""

    exit_code: ClassVar[int] = 70

    def __init__(self, what: str, *, why: str = "", next_command: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.next_command = what, why, next_command

    def __str__(self) -> str:
        hint = f"next: {self.next_command}" if self.next_command else ""
        return "\n".join(part for part in (self.what, self.why, hint) if part)


class UsageError(TidemillError):
    """The caller's own input is at fault; nothing was sent."""

    exit_code = 2


class RefusedError(TidemillError):
    """The cell decided against it. `code` is for programs, `field` names what is at fault."""

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        next_command: str = "",
        code: str = "",
        field: str = "",
    ) -> None:
        super().__init__(what, why=why, next_command=next_command)
        self.code, self.field = code, field


class NotFoundError(TidemillError):
    """No such job, node or queue, or the prefix fits several."""

    exit_code = 4


class NotAllowedError(TidemillError):
    """The token is missing, wrong, or lacks the right."""

    exit_code = 5


class UnavailableError(TidemillError):
    """The gateway cannot be reached or cannot answer now; trying again is safe."""

    exit_code = 6


class CallTimeoutError(UnavailableError):
    """No answer within the deadline; what was sent may still be carried out."""


_NEXT = {
    "NOT_FOUND": "tidemill jobs --all",
    "UNAUTHENTICATED": "tidemill doctor",
    "PERMISSION_DENIED": "tidemill doctor",
    "UNAVAILABLE": "tidemill doctor",
    "DEADLINE_EXCEEDED": "tidemill doctor",
    "RESOURCE_EXHAUSTED": "tidemill doctor",
}
_NEXT_OF_REASON = {
    "unknown_queue": "tidemill queues",
    "unknown_node": "tidemill nodes",
    "unknown_job": "tidemill jobs --all",
    "job_limit": "tidemill queues",
}


def from_rpc(error: grpc.RpcError, what: str, *, gateway: str) -> TidemillError:
    """The typed error for a failed call: status, reason code and fields at fault kept."""
    code = error.code().name
    why, reason, field = _details(error)
    next_command = _NEXT_OF_REASON.get(reason) or _NEXT.get(code, "")
    match code:
        case "NOT_FOUND":
            return NotFoundError(what, why=why, next_command=next_command)
        case "UNAUTHENTICATED" | "PERMISSION_DENIED":
            return NotAllowedError(what, why=why, next_command=next_command)
        case "DEADLINE_EXCEEDED":
            why = f"no answer from {gateway} within the deadline; it may still be carried out"
            return CallTimeoutError(what, why=why, next_command=next_command)
        case "UNAVAILABLE" | "RESOURCE_EXHAUSTED" | "ABORTED":
            why = f"the gateway at {gateway} cannot answer now ({why})"
            return UnavailableError(what, why=why, next_command=next_command)
        case "INVALID_ARGUMENT" | "FAILED_PRECONDITION" | "ALREADY_EXISTS" | "OUT_OF_RANGE":
            return RefusedError(
                what, why=why, next_command=next_command, code=reason or code.lower(), field=field
            )
        case _:
            return TidemillError(what, why=f"{code}: {why}", next_command="tidemill doctor")


def _details(error: grpc.RpcError) -> tuple[str, str, str]:
    """(why, reason code, first field at fault) from the status and its google.rpc details."""
    from google.rpc import error_details_pb2  # type: ignore[import-untyped]
    from grpc_status import rpc_status

    why, reason = error.details() or "no reason given", ""
    fields: list[tuple[str, str]] = []
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # an RpcError of a call is a Call
    for detail in status.details if status else ():
        bad, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
        if detail.Unpack(bad):
            fields += [(item.field, item.description) for item in bad.field_violations]
        elif detail.Unpack(info):
            reason = info.reason
    lines = [f"{name}: {text}" for name, text in fields]
    if fields and not all(text in why for _, text in fields):
        why = "\n".join([why, *lines])
    return why, reason, fields[0][0] if fields else ""


def retry_after_s(error: grpc.RpcError) -> float:
    """How long the gateway asks to wait before the same call; 0.0 when it does not say."""
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # an RpcError of a call is a Call
    retry = error_details_pb2.RetryInfo()
    for detail in status.details if status else ():
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToMilliseconds()) / 1000
    return 0.0
