"""The embedded cell of the demo: `tidemilld up` with two schedulers in a directory of its own, and hosts beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Self

from services.demo.hosts import Host
from services.demo.story import DEVICES, Failed
from services.runtime.reader import LogReader
from services.runtime.settings import CellSettings
from services.runtime.wiring import open_cell
from statemachines import snapshot
from statemachines.cluster import Cluster
from tidemill import Client

_READY_WITHIN_S: Final = 30.0
_END_WITHIN_S: Final = 20.0


class EmbeddedCell:
    """Up from `__enter__` to `__exit__`, which leaves no process and no file."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
        self._settings = CellSettings(cell="demo", directory=str(self.directory))
        self._up: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it and wait until its gateway answers. Raises Failed."""
        with (self.directory / "up.log").open("wb") as log:
            self._up = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "services.up",
                    *self._flags(),
                    "--schedulers",
                    "2",
                    "--agents",
                    "0",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ends = time.monotonic() + _READY_WITHIN_S
        while not self._address.exists():
            if self._up.poll() is not None or time.monotonic() > ends:
                self.__exit__()
                raise Failed(f"the cell did not start; it said:\n{self._said}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        """End it: SIGTERM, which ends the services in order; SIGKILL when that takes too long."""
        if self._up is not None:
            self._up.terminate()
            try:
                self._up.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._up.kill()  # Its children see it go and end too.
                self._up.wait()
        self._said = (self.directory / "up.log").read_text(errors="replace")[-4000:]
        shutil.rmtree(self.directory, ignore_errors=True)

    def client(self) -> Client:
        """Another connection to it."""
        return Client(cell=str(self.directory))

    def host(self, name: str) -> Host:
        """One more host of it. Its runs end with it."""
        arguments = (
            *self._flags(), "--gateway", self._address.read_text().strip(), "--fake-gpus", DEVICES,
            "--cpu", "8", "--end-runs",
        )  # fmt: skip
        return Host(name, arguments, self.directory / "hosts" / name, os.environ)

    def leader_pid(self, leader: str) -> int:
        """Schedulers of one machine are named HOST-PID."""
        return int(leader.rpartition("-")[2])

    def own_digest(self, offset: int) -> bytes:
        """State digest at that offset, folded in this process from the stored log."""
        with contextlib.ExitStack() as closing:
            cell = open_cell(self._settings)
            closing.callback(cell.close)
            log = cell.event_log()
            closing.callback(log.close)
            cluster = Cluster(self._settings.cell)
            LogReader(log, cluster, stop_before=lambda entry: entry.offset > offset).read_to_end()
            return snapshot.digest(cluster)

    @property
    def _address(self) -> Path:
        return self.directory / "gateway.addr"

    def _flags(self) -> tuple[str, ...]:
        return ("--cell", self._settings.cell, "--directory", str(self.directory))
