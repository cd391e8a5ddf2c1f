"""Why a call is not served: one value for the core, one translation for the wire.

`code` is for programs and never changes once released; `message` is for people and says what to do next. This must
never carry a secret, a path of ours or another user's data.
"""

from __future__ import annotations

from enum import StrEnum, unique

import msgspec


@unique
class Status(StrEnum):
    """The gRPC status, by its name."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    UNAVAILABLE = "UNAVAILABLE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    DATA_LOSS = "DATA_LOSS"
    INTERNAL = "INTERNAL"


class Violation(msgspec.Struct, frozen=True):
    """A field that is not as it must be; `field` is its path as the sender wrote it: "spec.roles[0].count"."""

    field: str
    message: str


class Refusal(Exception):
    """The answer to a call that is not served. `retry_after_ms` above 0: the same call may work later."""

    def __init__(
        self,
        status: Status,
        code: str,
        message: str,
        *,
        violations: tuple[Violation, ...] = (),
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.violations = violations
        self.retry_after_ms = retry_after_ms

    def __repr__(self) -> str:
        return f"Refusal({self.status}, {self.code!r}, {self.message!r})"
