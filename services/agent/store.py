"""The agent's state directory: one agent at a time, state stored whole and synced, or not at all.

Owns `lock`, `state` and reads `renewed`. A damaged state counts as lost, is put aside, and is said: the cell then tells
the agent what it believes to run here, and the agent looks for it. It must never hand out half of a state.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec
import structlog

from services.agent.fencing import Stamp
from services.agent.table import AgentState
from services.runtime.ports import PortError, StorageFullError

MAGIC: Final = b"tidemill-agent-1\n"
DIGEST_BYTES: Final = 32

log = structlog.get_logger()


class InUseError(PortError):
    """Another agent has this state directory."""


class StateStore:
    """One state directory, held until closed."""

    def __init__(self, directory: Path) -> None:
        """Raises InUseError, or PortError when the directory cannot be made."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PortError(
                f"cannot use {directory} as state directory: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise InUseError(
                f"another agent uses {directory}; give each agent its own --state directory"
            ) from None
        self.directory = directory
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(AgentState).decode

    def close(self) -> None:
        """Let another agent have the directory."""
        os.close(self._lock)

    def load(self) -> AgentState | None:
        """The state last saved; None when there is none, or none that can be trusted."""
        path = self.directory / "state"
        try:
            stored = path.read_bytes()
        except FileNotFoundError:
            return None
        body = stored[len(MAGIC) + DIGEST_BYTES :]
        if stored.startswith(MAGIC) and _digest(body) == stored[len(MAGIC) :][:DIGEST_BYTES]:
            with contextlib.suppress(msgspec.ValidationError):
                return self._decode(body)
        aside = path.with_name("state.damaged")
        path.replace(aside)
        log.error("agent_state_damaged", kept=str(aside), hint="the cell's orders replace it")
        return None

    def save(self, state: AgentState) -> None:
        """Durable when this returns. Raises PortError; then the state before it stands."""
        body = self._encode(state)
        scratch = self.directory / "state.new"
        try:
            with scratch.open("wb") as file:
                file.write(MAGIC + _digest(body) + body)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self.directory / "state")
            _sync(self.directory)
        except OSError as error:
            raise StorageFullError(
                f"cannot store the agent's state in {self.directory}: {error.strerror}; make space"
            ) from error

    def renewed(self) -> Stamp | None:
        """When the cell last acknowledged this node, as the executor's `renew` wrote it."""
        with contextlib.suppress(OSError, ValueError):
            mono, boot, sequence = map(int, (self.directory / "renewed").read_text().split())
            return Stamp(mono, boot, sequence)
        return None


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
