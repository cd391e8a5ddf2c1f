"""A cell to try things on: `tidemilld up` as a child, in a directory of its own, gone without a trace afterwards.

For demos, benchmarks and tests. It only starts, finds and ends processes; what they do is theirs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from services.runtime.settings import CellSettings, load
from services.runtime.tokens import KEYS_DIRECTORY, NODE_TOKEN_FILE

if TYPE_CHECKING:
    from tidemill import Client

READY_WITHIN_S: Final = 60.0
_END_WITHIN_S: Final = 30.0


class TrialError(RuntimeError):
    """The cell did not come to what was waited for; the message has what it said last."""


class TrialCell:
    """Up from `__enter__` to `__exit__`. `flags` go to `tidemilld up`; `stack` says where its log and elections are."""

    def __init__(
        self, name: str, *, agents: int = 0, flags: Sequence[str] = (), stack: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.directory = Path(tempfile.mkdtemp(prefix=f"tidemill-{name}-"))
        self.flags = ("--cell", name, "--directory", str(self.directory), *stack)
        self._up_flags = (*self.flags, "--agents", str(agents), *flags)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Start it and wait until its gateway answers and somebody leads. Raises TrialError."""
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything, last started first, and delete the directory."""
        for process in reversed(self._processes):
            self.end(process)
        shutil.rmtree(self.directory, ignore_errors=True)

    def prepare(self) -> None:
        """What must be there before the first process."""

    def start(self) -> None:
        """Start `up`, for the first time or again."""
        (self.directory / "gateway.addr").unlink(missing_ok=True)
        self.up = self.spawn("up", "services.up", *self._up_flags)
        self.until("the gateway", (self.directory / "gateway.addr").exists)
        with self.client() as client:
            self.until("a leader", lambda: client.cell(deadline_s=5.0).term > 0)

    # --- reaching it

    @property
    def settings(self) -> CellSettings:
        """What all its services are told."""
        return load(CellSettings, "trial", self.flags, environ={})

    @property
    def address(self) -> str:
        """Of the gateway."""
        return (self.directory / "gateway.addr").read_text(encoding="ascii").strip()

    @property
    def node_token(self) -> Path:
        """The file with the agents' token."""
        return self.directory / KEYS_DIRECTORY / NODE_TOKEN_FILE

    def client(self) -> Client:
        """Another connection."""
        from tidemill import Client

        return Client(cell=str(self.directory), deadline_s=60.0)

    # --- processes

    def spawn(
        self,
        name: str,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] = os.environ,
        prefix: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a module of ours beside it; what it says goes to NAME.log. `prefix` goes before the command."""
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *arguments],
                env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM; SIGKILL when that takes too long."""
        process.terminate()
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def pids(self) -> dict[int, str]:
        """`up` and its services, by module."""
        children = Path(f"/proc/{self.up.pid}/task/{self.up.pid}/children").read_text(
            encoding="ascii"
        )
        found = {}
        for pid in (self.up.pid, *map(int, children.split())):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found[pid] = _module(pid)
        return found

    def pids_of(self, module: str) -> list[int]:
        """Processes of one service."""
        return [pid for pid, each in self.pids().items() if each == f"services.{module}"]

    def leader_pid(self, client: Client) -> int:
        """The process that leads: schedulers of one machine are named HOST-PID."""
        return int(client.cell().leader.rpartition("-")[2])

    def kill_leader(self, client: Client) -> int:
        """SIGKILL to the process that leads; its id."""
        pid = self.leader_pid(client)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return pid

    # --- waiting

    def until(
        self, what: str, holds: Callable[[], bool], *, within_s: float = READY_WITHIN_S
    ) -> None:
        """Look again and again until it holds; a gateway that is away for a moment is asked again. Raises TrialError."""
        from tidemill import TidemillError

        ends = time.monotonic() + within_s
        why = ""
        while True:
            try:
                if holds():
                    return
            except TidemillError as error:
                why = f"; last: {error}"
            if time.monotonic() > ends or self.up.poll() is not None:
                raise TrialError(f"waited for {what}{why}; the cell said:\n{self.said('up')}")
            time.sleep(0.05)

    def said(self, name: str) -> str:
        """The end of what a process wrote."""
        return (self.directory / f"{name}.log").read_text(errors="replace")[-4000:]


def _module(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return (words[words.index(b"-m") + 1] if b"-m" in words else words[0]).decode()
