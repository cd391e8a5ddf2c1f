"""Asks a broker and an etcd member whether they serve. Standard library only, one question each.

It must never retry or wait for health: the caller owns the patience.
"""

import http.client
import json
import socket
import struct
from dataclasses import dataclass
from typing import Final

from compose.local.stack.ports import HOST

ANSWER_S: Final = 2.0
LARGEST_ANSWER: Final = 1 << 20
API_METADATA: Final = 3
METADATA_VERSION: Final = 1
NO_TOPICS: Final = struct.pack(">i", 0)


class NotServingError(Exception):
    """The member gave no, or no usable, answer; the text says which."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a broker knows of its cluster."""

    brokers: frozenset[int]
    controller: int


def kafka_metadata(port: int) -> Metadata:
    """Ask a broker for its view of the cluster (Metadata v1, no topics).

    Raises:
        NotServingError: refused, silent for ANSWER_S, or not Kafka.
    """
    header = struct.pack(">hhih", API_METADATA, METADATA_VERSION, 1, -1)  # Null client id.
    request = header + NO_TOPICS
    try:
        with socket.create_connection((HOST, port), timeout=ANSWER_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            if not 4 <= size <= LARGEST_ANSWER:
                raise NotServingError(f"port {port} does not speak Kafka's protocol")
            return parse_metadata(_exactly(connection, size)[4:])
    except (OSError, struct.error, IndexError) as error:
        raise NotServingError(f"no metadata from port {port}: {error}") from error


def parse_metadata(answer: bytes) -> Metadata:
    """Decode the head of a Metadata v1 response: brokers {id, host, port, rack}, controller id."""
    (count,), at = struct.unpack_from(">i", answer), 4
    brokers: set[int] = set()
    for _ in range(count):
        (node,) = struct.unpack_from(">i", answer, at)
        brokers.add(node)
        at = _after_string(answer, at + 4) + 4
        at = _after_string(answer, at)
    (controller,) = struct.unpack_from(">i", answer, at)
    return Metadata(brokers=frozenset(brokers), controller=controller)


def _after_string(answer: bytes, at: int) -> int:
    """The position after a nullable string (its length is -1 when null)."""
    length: int = struct.unpack_from(">h", answer, at)[0]
    return at + 2 + max(0, length)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("closed before the whole answer")
        parts += part
    return bytes(parts)


def etcd_healthy(port: int) -> None:
    """Ask a member's HTTP port for a linearizable read, which a majority must serve.

    Raises:
        NotServingError: refused, silent for ANSWER_S, or without a leader.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read(LARGEST_ANSWER))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotServingError(f"no health from port {port}: {error}") from error
    finally:
        connection.close()
    if not isinstance(answer, dict) or answer.get("health") != "true":
        raise NotServingError(f"unhealthy: {answer}")
