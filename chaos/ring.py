"""What the ranks of chaos/trainer.py sum over: datagrams between their hosts, on every rail of the fabric.

Each step every rank tells rank 0 its part on every rail, and again until it is answered. A step is done when all rails
have carried it; with failover, when one has. It binds the addresses of the fabric and nothing else, so a rail that loses
its link carries nothing; and it gives up as a collective does (NCCL: 7 tries of 4.3 s), for then the attempt is over.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import select
import socket
import struct
import time
from typing import Final

GIVE_UP_S: Final = 35.0
_AGAIN_S: Final = 0.05
# Rank 0 answers those whose last answer was lost, until nobody asks for this long.
_LINGER_S: Final = 0.5
_LINGER_MAX_S: Final = 5.0
# Attempt, step, rank, value; as large as what gangs really send, so that a port which takes no large frame drops it.
_MESSAGE: Final = struct.Struct("!8sqIq996x")
# Addresses of one host on neighbouring rails.
_RAIL: Final = 256


class RailsDeadError(Exception):
    """Nobody was heard for too long: this attempt is over."""


def rails(first: str, count: int) -> list[str]:
    """A host's address on each rail, from that on the first."""
    base = ipaddress.IPv4Address(first)
    return [str(base + rail * _RAIL) for rail in range(count)]


class Ring:
    """One rank's end. `address` is where rank 0 is on the first of `count` rails."""

    def __init__(
        self,
        attempt: str,
        *,
        rank: int,
        world_size: int,
        address: str,
        port: int,
        count: int = 1,
        failover: bool = False,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._attempt = hashlib.sha256(attempt.encode()).digest()[:8]
        self._rank, self._world_size = rank, world_size
        self._failover, self._give_up_s = failover, give_up_s
        self._done: tuple[int, int] = (-1, 0)
        self._sockets: list[socket.socket] = []
        for host in rails(address, count) if world_size > 1 else ():
            end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            end.setblocking(False)
            self._sockets.append(end)
            # The way to rank 0 on that rail decides where from.
            end.bind((host, port)) if rank == 0 else end.connect((host, port))

    def sum(self, step: int, value: int) -> int:
        """The sum over all ranks. Raises RailsDeadError."""
        if not self._sockets:
            return value
        total = self._collect(step, value) if self._rank == 0 else self._ask(step, value)
        self._done = (step, total)
        return total

    def close(self) -> None:
        """Rank 0 stays for those that wait for its last answer."""
        if self._rank == 0:
            ends = time.monotonic() + _LINGER_MAX_S
            while time.monotonic() < ends and self._take(-1, {}, wait_s=_LINGER_S):
                pass
        for end in self._sockets:
            end.close()

    # --- rank 0

    def _collect(self, step: int, value: int) -> int:
        heard: dict[tuple[int, int], tuple[int, tuple[str, int]]] = {}
        ends = time.monotonic() + self._give_up_s
        others = range(1, self._world_size)
        everywhere = [[(rank, rail) for rail in range(len(self._sockets))] for rank in others]
        enough = any if self._failover else all
        while not all(enough(each in heard for each in ways) for ways in everywhere):
            if time.monotonic() > ends:
                raise RailsDeadError(f"step {step}: not all {self._world_size} ranks were heard")
            self._take(step, heard, wait_s=_AGAIN_S)
        total = value + sum({rank: part for (rank, _), (part, _) in heard.items()}.values())
        for (_, rail), (_, whence) in heard.items():
            self._send(self._sockets[rail], step, total, whence)
        return total

    def _take(
        self,
        step: int,
        heard: dict[tuple[int, int], tuple[int, tuple[str, int]]],
        *,
        wait_s: float,
    ) -> bool:
        """Read what has come; who is still at the step before is answered again. False: nothing came in time."""
        ready, _, _ = select.select(self._sockets, [], [], wait_s)
        for end in ready:
            with contextlib.suppress(OSError):
                data, whence = end.recvfrom(_MESSAGE.size)
                attempt, asked, rank, value = _MESSAGE.unpack(data)
                if attempt != self._attempt:
                    continue
                if asked == step:
                    heard[rank, self._sockets.index(end)] = (value, whence)
                elif asked == self._done[0]:
                    self._send(end, asked, self._done[1], whence)
        return bool(ready)

    # --- the others

    def _ask(self, step: int, value: int) -> int:
        waiting = list(self._sockets)
        total: int | None = None
        again, ends = 0.0, time.monotonic() + self._give_up_s
        while total is None or (waiting and not self._failover):
            now = time.monotonic()
            if now > ends:
                raise RailsDeadError(f"step {step}: rank 0 did not answer on {len(waiting)} rails")
            if now >= again:
                again = now + _AGAIN_S
                for end in waiting:
                    self._send(end, step, value)
            ready, _, _ = select.select(waiting, [], [], max(again - now, 0.0))
            for end in ready:
                with contextlib.suppress(OSError):  # Nobody listens there yet.
                    attempt, answered, _, summed = _MESSAGE.unpack(end.recv(_MESSAGE.size))
                    if attempt == self._attempt and answered == step:
                        total = summed
                        waiting.remove(end)
        return total

    def _send(
        self, end: socket.socket, step: int, value: int, whence: tuple[str, int] | None = None
    ) -> None:
        """Sent or not: it is sent again."""
        message = _MESSAGE.pack(self._attempt, step, self._rank, value)
        with contextlib.suppress(OSError):
            end.send(message) if whence is None else end.sendto(message, whence)
