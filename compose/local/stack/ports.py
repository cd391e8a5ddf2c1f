"""Chooses and checks loopback ports. It never holds one: the member that gets it does."""

import random
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from compose.local.errors import StackError

HOST: Final = "127.0.0.1"
LOWEST: Final = 10_000
EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def choose(count: int) -> list[int]:
    """Distinct free ports outside the range from which the kernel serves outgoing connections.

    So a port stays free while its member is down, and a restarted member gets it again.
    """
    highest = max(int(EPHEMERAL.read_text().split()[0]) - 1, LOWEST + count)
    chosen: list[int] = []
    for candidate in random.SystemRandom().sample(range(LOWEST, highest + 1), highest - LOWEST):
        if len(chosen) == count:
            break
        if is_free(candidate):
            chosen.append(candidate)
    if len(chosen) < count:
        raise StackError(f"fewer than {count} free ports between {LOWEST} and {highest}")
    return chosen


def is_free(port: int) -> bool:
    """Whether a server could listen there now, as Kafka and etcd do (with SO_REUSEADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def taken(ports: Iterable[int]) -> list[int]:
    return [port for port in ports if not is_free(port)]
