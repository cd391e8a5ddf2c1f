"""Doorbells: how a process that has written tells waiting ones on the same machine, within a millisecond.

A waiting reader owns a unix datagram socket in a directory; its name says which topics it waits for, so that a writer
rings nobody in vain. A ring is a hint and carries nothing: it may be lost or come too often, and whoever waits also
looks by itself at a slow, bounded rate. It must never be the only way to learn of a record.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
from collections.abc import Collection, Sequence
from pathlib import Path


class Doorbells:
    """The bells of one directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def listen(self, topics: Sequence[str]) -> Bell:
        """A bell that rings when one of the topics has been written."""
        return Bell(self._directory, f"{'+'.join(topics)}.{os.getpid()}.{secrets.token_hex(4)}")

    def ring(self, topics: Collection[str]) -> None:
        """Wake everyone who waits for one of the topics. Never blocks, never fails."""
        wanted = frozenset(topics)
        for name in os.listdir(self._directory):  # noqa: PTH208 - an open directory
            if wanted.isdisjoint(name.partition(".")[0].split("+")):
                continue
            try:
                self._socket.sendto(b"", _address(self._directory, name))
            except ConnectionRefusedError:  # Its owner was killed.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._directory)
            except OSError:
                # Full: a ring is pending already. Gone: it does not wait. Else: it looks by itself soon.
                continue

    def close(self) -> None:
        """Give back the directory and the socket; bells must be closed before."""
        if self._socket.fileno() >= 0:
            self._socket.close()
            os.close(self._directory)


class Bell:
    """One reader's bell. `clear`, then look, then `wait`: so a ring between looking and waiting is not lost."""

    def __init__(self, directory: int, name: str) -> None:
        self._directory = directory
        self._name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(_address(directory, name))
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def clear(self) -> None:
        """Forget rings so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1)

    def wait(self, timeout_s: float) -> None:
        """Return at a ring, or after `timeout_s`."""
        self._poll.poll(timeout_s * 1000)

    def ring(self) -> None:
        """Wake the one who waits here."""
        with contextlib.suppress(BlockingIOError):
            self._socket.sendto(b"", _address(self._directory, self._name))

    def close(self) -> None:
        """Take the bell down."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._directory)
        self._socket.close()


def _address(directory: int, name: str) -> str:
    """A path short enough for a socket's address, however deep the directory lies."""
    return f"/proc/self/fd/{directory}/{name}"
