"""Records that a program writes to the topics of a cell by itself, and what proves who wrote them.

A proof is an HMAC over what the record says, keyed with a secret that never travels: the token of an attempt, or the key
of a service account. So whoever reads a topic can forge nothing, and an old record cannot be sent again later. Services
check proofs with the same functions. Pure; it holds no secret and needs no Kafka client.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from typing import Final

from tidemill.v1 import job_service_pb2, outside_pb2, telemetry_pb2

PROGRESS: Final = "progress"
OUTSIDE: Final = "outside"
_PROGRESS_PROOF: Final = "tmp."


def topic(cell: str, suffix: str) -> str:
    """Name of a cell's topic on the broker."""
    return f"{cell}.{suffix}"


def progress_record(
    token: str,
    *,
    job: str,
    attempt: int,
    rank: int,
    step: int,
    step_us: int = 0,
    phase: str = "train",
    busy_us: int = 0,
    metrics: Mapping[str, float] | None = None,
    at_ms: int | None = None,
) -> tuple[bytes, bytes]:
    """(key, value) of a record of `<cell>.progress`. `token` is that of the attempt, TIDEMILL_TOKEN."""
    said = telemetry_pb2.Progress(
        job=job,
        attempt=attempt,
        rank=rank,
        step=step,
        at_ms=_now_ms() if at_ms is None else at_ms,
        step_us=step_us,
        phase=phase,
        busy_us=busy_us,
        metrics=metrics or {},
    )
    said.token = progress_proof(token, said)
    return job.encode(), said.SerializeToString()


def progress_proof(token: str, said: telemetry_pb2.Progress) -> str:
    """What `Progress.token` must hold: proof of everything in the record but its metrics, which nothing judges."""
    words = [said.job, said.attempt, said.rank, said.step, said.at_ms, said.step_us, said.phase]
    if said.busy_us:  # Writers from before it was there leave it out.
        words.append(said.busy_us)
    proven = "\0".join(("progress", *map(str, words)))
    return _PROGRESS_PROOF + hmac.digest(token.encode(), proven.encode(), "sha256").hex()


def submission_record(
    key: str,
    request: job_service_pb2.SubmitJobRequest,
    *,
    principal: str,
    at_ms: int | None = None,
) -> tuple[bytes, bytes]:
    """(key, value) of a record of `<cell>.outside`. `key` is the account's, which its operator gave out.

    Raises ValueError without a request_id: it is what makes sending twice harmless.
    """
    if not request.request_id:
        raise ValueError("set request_id: a record may be stored twice, and is decided once by it")
    signed = outside_pb2.OutsideRequest(
        principal=principal,
        at_ms=_now_ms() if at_ms is None else at_ms,
        body=request.SerializeToString(deterministic=True),
    )
    signed.proof = submission_proof(key, signed)
    return principal.encode(), signed.SerializeToString()


def submission_proof(key: str, signed: outside_pb2.OutsideRequest) -> str:
    """What `OutsideRequest.proof` must hold."""
    proven = f"submit\0{signed.principal}\0{signed.at_ms}\0".encode() + signed.body
    return hmac.digest(key.encode(), proven, "sha256").hex()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
