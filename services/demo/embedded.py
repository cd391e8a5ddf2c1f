"""The embedded cell of the demo: `tidemilld up` with two schedulers in a directory of its own, and hosts beside it."""

from __future__ import annotations

import contextlib
import os

from services.demo.hosts import Host
from services.demo.story import DEVICES
from services.runtime.reader import LogReader
from services.runtime.settings import CellSettings
from services.runtime.trial import TrialCell
from services.runtime.wiring import open_cell
from statemachines import snapshot
from statemachines.cluster import Cluster


class EmbeddedCell(TrialCell):
    """Up from `__enter__` to `__exit__`, which leaves no process and no file."""

    def __init__(self) -> None:
        super().__init__("demo", flags=("--schedulers", "2"))

    def host(self, name: str) -> Host:
        """One more host of it. Its runs end with it."""
        arguments = (
            *self.flags, "--gateway", self.address, "--fake-gpus", DEVICES, "--cpu", "8", "--end-runs",
        )  # fmt: skip
        return Host(name, arguments, self.directory / "hosts" / name, os.environ)

    def own_digest(self, offset: int) -> bytes:
        """State digest at that offset, folded in this process from the stored log."""
        settings = CellSettings(cell=self.name, directory=str(self.directory))
        with contextlib.ExitStack() as closing:
            cell = open_cell(settings)
            closing.callback(cell.close)
            log = cell.event_log()
            closing.callback(log.close)
            cluster = Cluster(self.name)
            LogReader(log, cluster, stop_before=lambda entry: entry.offset > offset).read_to_end()
            return snapshot.digest(cluster)
