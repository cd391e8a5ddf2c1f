"""A cell to measure: `tidemilld up` in a directory of its own, and a fleet of simulated nodes on one stream.

Everything runs on this machine beside the load that measures it; figures say so by being of whole processes.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from simulation.fleet import NodeShape
from tidemill import Client, TidemillError

_READY_WITHIN_S: Final = 60.0
_END_WITHIN_S: Final = 30.0


class MeasuredCell:
    """Up from `__enter__` to `__exit__`; leaves no process and no file."""

    def __init__(self, *, agents: int = 0, flags: Sequence[str] = ()) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tidemill-bench-"))
        self._flags = (
            "--directory",
            str(self.directory),
            "--agents",
            str(agents),
            "--log-level",
            "warning",
            *flags,
        )
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Start it and wait until its gateway answers."""
        self.up = self._spawn("up", "services.up", *self._flags)
        self._until("the gateway", (self.directory / "gateway.addr").exists)
        with self.client() as client:
            self._until("a leader", lambda: client.cell().term > 0)
        return self

    def __exit__(self, *_: object) -> None:
        """End everything, last started first."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def client(self) -> Client:
        """Another connection."""
        return Client(cell=str(self.directory), deadline_s=60.0)

    def fleet(self, shapes: Sequence[NodeShape]) -> None:
        """Attach simulated nodes, and wait until all are ready."""
        file = self.directory / "fleet.json"
        file.write_bytes(msgspec.json.encode(list(shapes)))
        address = (self.directory / "gateway.addr").read_text(encoding="ascii").strip()
        token = self.directory / "keys" / "node.token"
        self._spawn(
            "fleet",
            "simulation.fleet",
            "--gateway",
            address,
            "--token-file",
            str(token),
            "--nodes",
            str(file),
        )
        with self.client() as client:
            self._until("the fleet to join", lambda: client.cell().nodes_ready >= len(shapes))

    def pids(self) -> list[int]:
        """`up` and its services."""
        children = Path(f"/proc/{self.up.pid}/task/{self.up.pid}/children").read_text(
            encoding="ascii"
        )
        return [self.up.pid, *map(int, children.split())]

    def leader_pid(self, client: Client) -> int:
        """The process that leads."""
        return int(client.cell().leader.rpartition("-")[2])

    def kill_leader(self, client: Client) -> None:
        """SIGKILL to the process that leads."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(_pidfd(self.leader_pid(client)), signal.SIGKILL)

    def said(self, name: str) -> str:
        """The end of what a process wrote."""
        return (self.directory / f"{name}.log").read_text(errors="replace")[-4000:]

    def _spawn(self, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _until(self, what: str, holds: object) -> None:
        assert callable(holds), "a condition is called"
        ends = time.monotonic() + _READY_WITHIN_S
        while True:
            with contextlib.suppress(TidemillError):
                if holds():
                    return
            if time.monotonic() > ends or self.up.poll() is not None:
                raise RuntimeError(f"waited for {what}; the cell said:\n{self.said('up')}")
            time.sleep(0.05)


def _pidfd(pid: int) -> int:
    import os

    return os.pidfd_open(pid)
