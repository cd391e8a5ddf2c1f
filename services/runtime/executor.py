"""The executor port: how an agent starts, ends and finds again the processes of a run.

The agent decides; an executor does, and keeps how each run ended until it is forgotten, whatever happens to the agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum, unique
from typing import BinaryIO, Protocol

import msgspec

from statemachines.values import Evidence, RunId

Environment = tuple[tuple[str, str], ...]


class StartError(Exception):
    """The run was not started, and nothing of it lives. The message says what to do."""


class Launch(msgspec.Struct, frozen=True, gc=False):
    """What to start. One process for each environment, all with the same command."""

    run: RunId
    argv: tuple[str, ...]
    environments: tuple[Environment, ...]
    # Empty: the run's own directory.
    workdir: str = ""
    # Saved as an executable file whose path is put before argv.
    script: bytes = b""
    # 0: no limit.
    cpu_milli: int = 0
    memory_mib: int = 0
    # What one process' end leaves of the others gets this long between SIGTERM and SIGKILL.
    grace_ms: int = 30_000
    # Cut off for longer (see `renew`), the run is killed even if the agent is dead; 0: never.
    fence_after_ms: int = 0


class RunEnd(msgspec.Struct, frozen=True, gc=False):
    """How a run ended. Said only once nothing of it lives."""

    run: RunId
    evidence: Evidence
    exit_code: int = 0
    signal: int = 0
    message: str = ""
    # Reports that its programs could not send, each a serialised tidemill.v1.Report, oldest first. Claims, unchecked.
    left: tuple[bytes, ...] = ()


@unique
class Found(StrEnum):
    """What is left of a run after the agent was restarted."""

    # Its supervisor lives; its end will be seen by `ends`.
    ALIVE = "alive"
    # It ended, or its supervisor was killed: `ends` will say so.
    ENDED = "ended"
    # None of its processes was ever started, and none will be.
    ABSENT = "absent"


class Executor(Protocol):
    """Starts and ends runs on one host. Run ids are checked: none becomes a path that leaves the executor's own."""

    def adopt(self, run: RunId) -> Found:
        """Look for a run of an earlier agent. To be called before `start` for every run that may have been started."""

    def start(self, launch: Launch) -> None:
        """Start it once: when this returns its processes exist. Raises StartError when they do not.

        If the agent dies within, either all processes were started under a supervisor or none ever will be.
        """

    def terminate(self, run: RunId) -> None:
        """SIGTERM to the main processes of the run, and to no others; nothing if they are gone."""

    def kill(self, run: RunId) -> bool:
        """SIGKILL all that is of the run, wherever it hides; True once nothing lives. Bounded in time: ask again."""

    def ends(self, timeout_s: float) -> Sequence[RunEnd]:
        """Runs started or adopted here that have ended and of which nothing lives; waits for the first of them."""


class RunFiles(Protocol):
    """The small files of runs on this host."""

    def kept(self) -> Mapping[RunId, bool]:
        """Runs that have files here, and whether their supervisor lives, whoever started it."""

    def renew(self, mono_ms: int, boot_ms: int, sequence: int) -> None:
        """Tell supervisors when the cell last acknowledged this agent. Not synced."""

    def ask(self, run: RunId, ask: int, at_step: int, *, stop_after: bool) -> None:
        """Replace the run's early-save file: JSON with ask, at_step and stop_after_save."""

    def output(self, run: RunId) -> tuple[BinaryIO, ...]:
        """The kept output, oldest file first; the last one may still grow. Raises FileNotFoundError."""

    def forget(self, run: RunId) -> None:
        """Its files may go; kept for a while so that its output can still be read."""
