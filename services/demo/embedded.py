"""The embedded cell of the demo: `tidemilld up` with two schedulers in a directory of its own, and hosts beside it."""

from __future__ import annotations

import os
import sys

from services.demo.hosts import Host
from services.demo.story import OwnFold, trainer_path
from services.demo.trial import fold_of, host_of
from services.runtime.trial import TrialCell
from tidemill import Client


class EmbeddedCell(TrialCell):
    """Up from `__enter__` to `__exit__`, which leaves no process and no file."""

    python = sys.executable
    python_path = os.environ.get("PYTHONPATH", "")
    doors = 1
    trainer = trainer_path()

    def __init__(self) -> None:
        super().__init__("demo", flags=("--schedulers", "2"))

    def client(self, door: int = 0) -> Client:
        """Another connection to it: there is one door."""
        assert door == 0, "an embedded cell has one gateway"
        return super().client()

    def host(self, name: str) -> Host:
        """One more host of it."""
        return host_of(self, name, self.address)

    def own_fold(self, offset: int) -> OwnFold:
        """Folded in this process, up to that offset."""
        return fold_of(self.settings, offset)
