"""Hosts of the demo: agents as processes of their own, each a node with simulated devices, that can be made to die.

A host dies as a machine would: the agent and every process of its runs are gone at once, and nobody starts it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_END_WITHIN_S: Final = 10.0


class Host:
    """One agent and what it runs. `log` gets what the agent says."""

    def __init__(
        self, name: str, arguments: tuple[str, ...], state: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._state = state
        state.mkdir(parents=True, exist_ok=True)
        with (state / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                (
                    sys.executable,
                    "-m",
                    "services.agent",
                    "--node",
                    name,
                    "--state",
                    str(state),
                    *arguments,
                ),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether its agent runs."""
        return self._process.poll() is None

    def die(self) -> int:
        """SIGKILL to the agent and to all that it runs; answers how many processes that were."""
        doomed = [self._process.pid, *self._of_its_runs()]
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        return len(doomed)

    def end(self) -> None:
        """SIGTERM, so that it ends what it runs; SIGKILL to all that outlives it."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_WITHIN_S)
        ends = time.monotonic() + _END_WITHIN_S
        while self.die() > 1 and time.monotonic() < ends:
            pass

    def _of_its_runs(self) -> Iterator[int]:
        """Processes that name this host's directory: supervisors on their command line, programs in their environment."""
        mark = os.fsencode(self._state)
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) not in {os.getpid(), self._process.pid}:
                with contextlib.suppress(OSError):
                    if (
                        mark in (entry / "cmdline").read_bytes()
                        or mark in (entry / "environ").read_bytes()
                    ):
                        yield int(entry.name)
