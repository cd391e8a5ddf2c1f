"""Builds the ports of a cell from its settings: the only module that names adapters.

Each adapter is imported where it is chosen, so that a process loads nothing that it does not use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from services.runtime.adapters.clock import SystemClock
from services.runtime.ports import (
    Blobs,
    EventLog,
    Inputs,
    Leadership,
    Publisher,
    Snapshots,
)
from services.runtime.settings import CellSettings, SettingsError

if TYPE_CHECKING:
    from services.runtime.adapters.sqlite_store import Store


class Cell(Protocol):
    """Opens the ports of one cell; each call opens another, and whoever calls closes it before the cell."""

    clock: SystemClock

    def event_log(self) -> EventLog:
        """The log."""

    def inputs(self, topics: Sequence[str]) -> Inputs:
        """Topics to read from, by suffix."""

    def publisher(self) -> Publisher:
        """Topics to write to."""

    def snapshots(self) -> Snapshots:
        """Where snapshots are kept."""

    def blobs(self) -> Blobs:
        """Where blobs are kept."""

    def leadership(self, name: str) -> Leadership:
        """One more candidate, called `name`."""

    def close(self) -> None:
        """Give back what the ports shared."""


def open_cell(settings: CellSettings) -> Cell:
    """The cell that the settings name. Raises SettingsError, PortError."""
    match settings.log:
        case "embedded":
            return EmbeddedCell(settings)
        case "kafka":
            raise SettingsError("log = kafka is not available in this version: use embedded")


class EmbeddedCell:
    """A cell of this machine: one SQLite file and one lock file in its directory."""

    def __init__(self, settings: CellSettings) -> None:
        from services.runtime.adapters.sqlite_store import Store

        self.clock = SystemClock()
        self._settings = settings
        self._store: Store = Store(settings.home / "cell.db", wall_ms=self.clock.wall_ms)

    def event_log(self) -> EventLog:
        from services.runtime.adapters.sqlite import SqliteEventLog

        return SqliteEventLog(self._store)

    def inputs(self, topics: Sequence[str]) -> Inputs:
        from services.runtime.adapters.sqlite import SqliteInputs

        return SqliteInputs(self._store, topics)

    def publisher(self) -> Publisher:
        from services.runtime.adapters.sqlite import SqlitePublisher

        return SqlitePublisher(self._store)

    def snapshots(self) -> Snapshots:
        from services.runtime.adapters.sqlite import SqliteSnapshots

        return SqliteSnapshots(self._store)

    def blobs(self) -> Blobs:
        from services.runtime.adapters.sqlite import SqliteBlobs

        return SqliteBlobs(self._store)

    def leadership(self, name: str) -> Leadership:  # noqa: ARG002 - a lock has no use for a name
        from services.runtime.adapters import file_lock

        path = self._settings.home / "leader.lock"
        match self._settings.leadership:
            case "file":
                return file_lock.FileLock(path)
            case "always":
                return file_lock.AlwaysLeads(path)
            case "etcd":
                raise SettingsError("leadership = etcd is not available in this version: use file")

    def close(self) -> None:
        self._store.close()
