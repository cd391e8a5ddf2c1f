"""The embedded cell of the demo: `tidemilld up` with two schedulers in a directory of its own, and hosts beside it."""

from __future__ import annotations

from services.demo.hosts import Host
from services.demo.story import OwnFold
from services.demo.trial import fold_of, host_of
from services.runtime.trial import TrialCell


class EmbeddedCell(TrialCell):
    """Up from `__enter__` to `__exit__`, which leaves no process and no file."""

    def __init__(self) -> None:
        super().__init__("demo", flags=("--schedulers", "2"))

    def host(self, name: str) -> Host:
        """One more host of it."""
        return host_of(self, name, self.address)

    def own_fold(self, offset: int) -> OwnFold:
        """Folded in this process, up to that offset."""
        return fold_of(self, offset)
