"""Builds the ports of a cell from its settings: the only module that names adapters.

Each adapter is imported where it is chosen, so that a process loads nothing that it does not use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
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
from services.runtime.projection import FactSink
from services.runtime.settings import CellSettings, SettingsError
from services.runtime.streams import Streams

if TYPE_CHECKING:
    from services.runtime.adapters.etcd_client import EtcdSettings
    from services.runtime.adapters.kafka import KafkaEventLog
    from services.runtime.adapters.kafka_admin import KafkaAdmin
    from services.runtime.adapters.kafka_client import KafkaSettings
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

    def fact_sink(self) -> FactSink:
        """Where the log is flattened to."""

    def leadership(self, name: str) -> Leadership:
        """One more candidate, called `name`."""

    def close(self) -> None:
        """Give back what the ports shared."""


def open_cell(settings: CellSettings, client: str = "tidemilld") -> Cell:
    """The cell that the settings name. `client` is what brokers call us. Raises SettingsError, PortError."""
    match settings.log:
        case "embedded":
            return EmbeddedCell(settings)
        case "kafka":
            return KafkaCell(settings, client)


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

    def fact_sink(self) -> FactSink:
        from services.runtime.adapters.sqlite_facts import SqliteFacts

        return SqliteFacts(self._store)

    def leadership(self, name: str) -> Leadership:
        return _leadership(self._settings, name)

    def close(self) -> None:
        self._store.close()


class KafkaCell:
    """A cell whose log and topics are on Kafka. Nothing is asked of a broker before a port is used."""

    def __init__(self, settings: CellSettings, client: str) -> None:
        self.clock = SystemClock()
        self._settings = settings
        self._kafka = kafka_settings(settings, client)
        self._logs: list[KafkaEventLog] = []

    def event_log(self) -> EventLog:
        from services.runtime.adapters.kafka import KafkaEventLog

        log = KafkaEventLog(self._kafka)
        self._logs.append(log)
        return log

    def inputs(self, topics: Sequence[str]) -> Inputs:  # noqa: ARG002 - each read names its topics
        from services.runtime.adapters.kafka import KafkaInputs

        return KafkaInputs(self._kafka)

    def publisher(self) -> Publisher:
        from services.runtime.adapters.kafka import KafkaPublisher

        return KafkaPublisher(self._kafka)

    def snapshots(self) -> Snapshots:
        from services.runtime.adapters.kafka_snapshots import KafkaSnapshots

        return KafkaSnapshots(self._kafka)

    def blobs(self) -> Blobs:
        from services.runtime.adapters.kafka_blobs import KafkaBlobs

        return KafkaBlobs(self._kafka)

    def fact_sink(self) -> FactSink:
        from services.runtime.adapters.kafka_facts import KafkaFacts

        return KafkaFacts(self._kafka)

    def leadership(self, name: str) -> Leadership:
        """One more candidate; who stands will append, and should not wait for a connection when it has won."""
        for log in self._logs:
            log.prepare_to_append()
        return _leadership(self._settings, name)

    def close(self) -> None:
        """Ports share nothing."""


def _leadership(settings: CellSettings, name: str) -> Leadership:
    match settings.leadership:
        case "file":
            from services.runtime.adapters.file_lock import FileLock

            return FileLock(settings.home / "leader.lock")
        case "always":
            from services.runtime.adapters.file_lock import AlwaysLeads

            return AlwaysLeads(settings.home / "leader.lock")
        case "etcd":
            with _extra("leadership = etcd"):
                from services.runtime.adapters.etcd import EtcdLeadership

            return EtcdLeadership(etcd_settings(settings), name)


def open_topic_admin(settings: CellSettings) -> KafkaAdmin:
    """Administration of the cell's brokers. Raises SettingsError, PortError."""
    with _extra("log = kafka"):
        from services.runtime.adapters.kafka_admin import KafkaAdmin

    return KafkaAdmin(kafka_settings(settings, "topics"))


def kafka_settings(settings: CellSettings, client: str) -> KafkaSettings:
    """How to reach the brokers. Raises SettingsError."""
    with _extra("log = kafka"):
        from services.runtime.adapters.kafka_client import KafkaSettings

    if not settings.kafka:
        raise SettingsError("setting kafka is required when log = kafka: HOST:PORT,HOST:PORT")
    options = dict(_options(Path(settings.kafka_options))) if settings.kafka_options else {}
    return KafkaSettings(settings.kafka, settings.cell, client, options=options)


def open_streams(settings: CellSettings, group: str) -> Streams:
    """Membership of the group `<cell>.<group>`. Raises SettingsError; only a cell on Kafka has streams."""
    if settings.log != "kafka":
        raise SettingsError("streams need a broker: set log = kafka, or use a host of its own loop")
    with _extra("hosted_by = faust"):
        from services.runtime.adapters.faust_streams import FaustStreams

    return FaustStreams(kafka_settings(settings, group), f"{settings.cell}.{group}")


def etcd_settings(settings: CellSettings) -> EtcdSettings:
    """How to reach etcd. Raises SettingsError."""
    with _extra("leadership = etcd"):
        from services.runtime.adapters.etcd_client import EtcdSettings

    if not settings.etcd:
        raise SettingsError("setting etcd is required when leadership = etcd: HOST:PORT,HOST:PORT")
    password = _read(Path(settings.etcd_password_file)) if settings.etcd_password_file else ""
    return EtcdSettings(
        settings.etcd,
        settings.cell,
        lease_ttl_s=settings.lease_ttl_s,
        ca=settings.etcd_ca,
        cert=settings.etcd_cert,
        key=settings.etcd_key,
        user=settings.etcd_user,
        password=password.strip(),
    )


@contextlib.contextmanager
def _extra(setting: str) -> Iterator[None]:
    """Imports of what only the extra `distributed` brings. Raises SettingsError when it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"setting {setting} needs {error.name}, which is not installed: pip install 'tidemill-server[distributed]'"
        ) from error


def _options(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise SettingsError(
                f"{path}, line {number}: write name=value, as security.protocol=SSL"
            )
        yield name.strip(), value.strip()


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path}: {error}. Give a text file that this user may read."
        ) from error
