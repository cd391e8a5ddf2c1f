"""Ids and the digests they come from. Deterministic: deciding or asking again gives the same name.

The only place that knows how an id is spelled. It never checks that what an id names exists.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from google.protobuf.message import Message

from statemachines.values import JobId, RunId

JOB_ID_CHARS: Final = 12
# Base32 digits at the front become letters, so that an id is never taken for a number.
_LETTERS: Final = str.maketrans("234567", "abcdef")


def job_id(*, principal: str, request: str) -> JobId:
    """The id of the job that this request of this principal makes, now and at every retry."""
    digest = hashlib.sha256(b"job\0" + principal.encode() + b"\0" + request.encode()).digest()
    name = base64.b32encode(digest[:10])[:JOB_ID_CHARS].decode().lower()
    return JobId(name[0].translate(_LETTERS) + name[1:])


def array_element(job: JobId, index: int) -> JobId:
    """The id of one job of an array."""
    return JobId(f"{job}_{index}")


def array_of(job: str) -> str:
    """The array that a job is one of; empty for a job by itself."""
    return job.rpartition("_")[0]


def run_id(job: JobId, attempt: int, rank: int) -> RunId:
    """The id of one member of one attempt."""
    return RunId(f"{job}.{attempt}.{rank}")


def parse_run_id(run: str) -> tuple[JobId, int, int]:
    """(job, attempt, rank); raises ValueError when it is not the id of a run."""
    job, attempt, rank = run.rsplit(".", 2)
    if not job:
        raise ValueError(f"{run!r} is not the id of a run: expected JOB.ATTEMPT.RANK")
    return JobId(job), int(attempt), int(rank)


def request_key(*, client: str, request: str) -> str:
    """What a request is recognised by when it is repeated."""
    return f"{client}/{request}"


def reused_key(key: str, digest: bytes) -> str:
    """Where the refusal goes of a request that repeats `key` with other content, so that the first answer stays."""
    return f"{key}#{digest.hex()[:8]}"


def request_digest(kind: Message) -> bytes:
    """Tells same content from other content under one key. `kind` is the message in the request's oneof.

    Its name is part of it: to hold a job and to cancel it are the same bytes.
    """
    name = kind.DESCRIPTOR.name.encode()
    return hashlib.sha256(name + b"\0" + kind.SerializeToString(deterministic=True)).digest()


def blob_digest(blob: bytes) -> str:
    """The name of a blob."""
    return hashlib.sha256(blob).hexdigest()
