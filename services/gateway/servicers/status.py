"""A refusal as a gRPC status with google.rpc details, so that programs need not read the text."""

from __future__ import annotations

from typing import Final, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]
    BadRequest,
    ErrorInfo,
    RetryInfo,
)
from google.rpc.status_pb2 import Status as StatusMessage  # type: ignore[import-untyped]

from services.gateway.refusal import Refusal

# Where ErrorInfo says that its reason codes come from.
DOMAIN: Final = "tidemill"
DETAILS_KEY: Final = "grpc-status-details-bin"
# The status travels in the trailers, which peers bound; the message of an odd field could be long.
MESSAGE_CHARS_MAX: Final = 2_000


def details(refusal: Refusal) -> StatusMessage:
    """ErrorInfo with the reason code; BadRequest with fields; RetryInfo when the same call may work later."""
    code = grpc.StatusCode[refusal.status.value]
    status = StatusMessage(code=code.value[0], message=refusal.message[:MESSAGE_CHARS_MAX])
    _add(status, ErrorInfo(reason=refusal.code, domain=DOMAIN))
    if refusal.violations:
        fields = [
            BadRequest.FieldViolation(field=each.field, description=each.message)
            for each in refusal.violations
        ]
        _add(status, BadRequest(field_violations=fields))
    if refusal.retry_after_ms:
        delay = Duration()
        delay.FromMilliseconds(refusal.retry_after_ms)
        _add(status, RetryInfo(retry_delay=delay))
    return status


def _add(status: StatusMessage, detail: Message) -> None:
    packed = AnyMessage()
    packed.Pack(detail)
    status.details.append(packed)


async def abort(context: grpc.aio.ServicerContext, refusal: Refusal) -> NoReturn:  # type: ignore[type-arg]
    """End the call with the refusal."""
    status = details(refusal)
    await context.abort(
        grpc.StatusCode[refusal.status.value],
        status.message,
        ((DETAILS_KEY, status.SerializeToString()),),
    )
    raise AssertionError("abort raises")
