"""Writes to a cell's topics with plain confluent-kafka and the standard library; nothing of Tidemill is imported.

The records are protobuf (protos/tidemill/v1/telemetry.proto, outside.proto); the few fields needed are encoded by hand,
so that the same can be done in any language. An operator must allow it: docs/how-to/outside-producers.md.

    python examples/outside_producer.py progress --kafka HOST:PORT --cell NAME --steps 100
    python examples/outside_producer.py submit --kafka HOST:PORT --cell NAME --principal service:ci --id r1 -- sleep 5

`progress` takes TIDEMILL_JOB, _ATTEMPT, _RANK and _TOKEN from the environment that a run has; `submit` takes the
account's key (`tidemilld account-key`) from TIDEMILL_ACCOUNT_KEY.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import os
import sys
import time
from collections.abc import Sequence

from confluent_kafka import Producer

VARINT, BYTES = 0, 2


def number(field: int, value: int) -> bytes:
    """An integer field; zero is not written."""
    return varint(field << 3 | VARINT) + varint(value) if value else b""


def data(field: int, value: str | bytes) -> bytes:
    """A string, bytes or message field; an empty string is not written."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | BYTES) + varint(len(raw)) + raw if raw else b""


def varint(value: int) -> bytes:
    """Seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def proof(secret: str, *words: object) -> str:
    """Hex HMAC-SHA256 over the words, joined by NUL."""
    said = b"\0".join(word if isinstance(word, bytes) else str(word).encode() for word in words)
    return hmac.new(secret.encode(), said, hashlib.sha256).hexdigest()


def progress(token: str, job: str, attempt: int, rank: int, step: int, at_ms: int) -> bytes:
    """A tidemill.v1.Progress."""
    step_us, phase = 0, "train"
    proven = proof(token, "progress", job, attempt, rank, step, at_ms, step_us, phase)
    return (
        data(1, job)
        + number(2, attempt)
        + number(3, rank)
        + number(4, step)
        + number(5, at_ms)
        + data(7, phase)
        + data(8, f"tmp.{proven}")
    )


def submission(key: str, principal: str, request_id: str, argv: Sequence[str], at_ms: int) -> bytes:
    """A tidemill.v1.OutsideRequest with a SubmitJobRequest for one CPU in it."""
    resources = number(1, 1_000) + number(2, 64)  # cpu_milli, memory_mib
    role = data(1, "worker") + number(2, 1) + data(3, resources)
    spec = data(1, "outside") + data(2, "default") + data(4, role)
    launch = b"".join(data(1, word) for word in argv)
    body = data(1, request_id) + data(2, spec) + data(3, launch)
    proven = proof(key, "submit", principal, at_ms, body)
    return data(1, principal) + number(2, at_ms) + data(3, body) + data(4, proven)


def main(argv: Sequence[str] | None = None) -> int:
    """Write, and wait until the brokers have it."""
    options = _parser().parse_args(argv)
    producer = Producer(
        {
            "bootstrap.servers": options.kafka,
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "consistent",  # As every writer of a cell: one job, one partition.
            "allow.auto.create.topics": False,
        }
    )
    failed: list[str] = []

    def told(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    def send(suffix: str, key: str, value: bytes) -> None:
        producer.produce(f"{options.cell}.{suffix}", value, key.encode(), on_delivery=told)
        producer.poll(0)

    env = os.environ
    if options.what == "submit":
        key = env["TIDEMILL_ACCOUNT_KEY"]
        record = submission(key, options.principal, options.id, options.command, now_ms())
        send("outside", options.principal, record)
    else:
        job, attempt = env["TIDEMILL_JOB"], int(env["TIDEMILL_ATTEMPT"])
        rank = int(env.get("TIDEMILL_RANK", "0"))
        for step in range(1, options.steps + 1):
            send(
                "progress",
                job,
                progress(env["TIDEMILL_TOKEN"], job, attempt, rank, step, now_ms()),
            )
            time.sleep(options.step_s)
    if producer.flush(30):
        failed.append("no broker acknowledged it within 30 s")
    print(failed[0] if failed else "stored", file=sys.stderr if failed else sys.stdout)
    return 1 if failed else 0


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    what = parser.add_subparsers(dest="what", required=True)
    for name in ("progress", "submit"):
        command = what.add_parser(name)
        command.add_argument("--kafka", required=True, metavar="HOST:PORT")
        command.add_argument("--cell", required=True)
        if name == "progress":
            command.add_argument("--steps", type=int, default=100)
            command.add_argument("--step-s", type=float, default=0.1)
        else:
            command.add_argument("--principal", required=True)
            command.add_argument("--id", required=True, help="request id: it is decided once by it")
            command.add_argument("command", nargs="+", help="what the job runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
