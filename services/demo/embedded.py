"""The embedded cell of the demo: `tidemilld up` with two schedulers in a directory of its own, and hosts beside it."""

from __future__ import annotations

import contextlib
import os

from services.demo.hosts import Host
from services.demo.story import DEVICES, OwnFold
from services.runtime.reader import LogReader
from services.runtime.settings import CellSettings
from services.runtime.trial import TrialCell
from services.runtime.wiring import open_cell
from statemachines import snapshot
from statemachines.cluster import Cluster
from statemachines.facts import Fact


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

    def own_fold(self, offset: int) -> OwnFold:
        """Folded in this process from the stored log, up to that offset."""
        settings = CellSettings(cell=self.name, directory=str(self.directory))
        with contextlib.ExitStack() as closing:
            cell = open_cell(settings)
            closing.callback(cell.close)
            log = cell.event_log()
            closing.callback(log.close)
            cluster = Cluster(self.name)
            reader = LogReader(log, cluster, stop_before=lambda entry: entry.offset > offset)
            facts: list[tuple[int, Fact]] = []
            while folded := reader.read(timeout_s=0):
                entries = [each.entry for each in folded if each.accepted]
                facts += [
                    (entry.at_ms, recorded.fact) for entry in entries for recorded in entry.facts
                ]
            return OwnFold(snapshot.digest(cluster), tuple(facts))
