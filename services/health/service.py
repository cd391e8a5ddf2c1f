"""`tidemilld health`: judges the nodes, jobs and devices of a cell by what they say and by their silence."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from services.health.driver import Processor
from services.health.judge import TOPICS, Ports
from services.health.metrics import Observer
from services.health.proofs import Proofs
from services.health.settings import HealthSettings
from services.health.table import Table, parse
from services.runtime import settings as runtime_settings
from services.runtime.exits import ExitCode, exit_code_of
from services.runtime.patience import Patience
from services.runtime.ports import PortError
from services.runtime.settings import SettingsError, table
from services.runtime.shutdown import Shutdown
from services.runtime.telemetry import Telemetry
from services.runtime.tokens import CELL_KEY_FILE, KEYS_DIRECTORY, TokensError, read_key
from services.runtime.wiring import open_cell, open_streams

# Without telemetry it looks this often; a request to stop is noticed after it.
TURN_S: Final = 1.0


def main(argv: Sequence[str]) -> int:
    """Run until asked to stop; answers the exit code. Errors that end it say what to do."""
    settings = runtime_settings.load(HealthSettings, "health", argv, summary=__doc__ or "")
    shutdown = Shutdown()
    shutdown.install()
    with contextlib.ExitStack() as closing:
        telemetry = Telemetry(settings, "health")
        closing.callback(telemetry.close)
        run(settings, telemetry, until=lambda: shutdown.asked, wait=shutdown.wait)
    return ExitCode.STOPPED


def run(
    settings: HealthSettings,
    telemetry: Telemetry,
    *,
    until: Callable[[], bool],
    wait: Callable[[float], bool],
) -> None:
    """Work until `until` holds. `wait` sleeps between tries in bad weather. Raises SettingsError, PortError."""
    # Entities are no work for the collector of cycles: look less often.
    gc.set_threshold(50_000, 20, 50)
    observer = Observer(telemetry)
    with contextlib.ExitStack() as closing:
        ports = open_ports(settings, closing)
        patience = Patience(settings.weather_patience_s, observer.failing)
        try:
            if settings.hosted_by == "faust":
                _on_streams(settings, ports, observer, patience, until)
            else:
                processor = Processor(
                    settings.cell,
                    ports,
                    settings.rules(),
                    load_table(settings),
                    observer,
                    load_proofs(settings, observer),
                )
                observer.attach(processor.judge)
                _work(processor, observer, patience, until=until, wait=wait)
        except Exception as error:
            observer.ended(error, exit_code_of(error))
            raise


def open_ports(settings: HealthSettings, closing: contextlib.ExitStack) -> Ports:
    """What it reads and writes, closed with `closing`. Raises SettingsError, PortError."""
    # Streams have the group of this name; ours only shows lag.
    cell = open_cell(settings, "health-fold" if settings.hosted_by == "faust" else "health")
    closing.callback(cell.close)
    ports = Ports(
        log=cell.event_log(),
        snapshots=cell.snapshots(),
        inputs=cell.inputs([topic.suffix for topic in TOPICS]),
        publisher=cell.publisher(),
        clock=cell.clock,
    )
    for port in (ports.publisher, ports.inputs, ports.snapshots, ports.log):
        closing.callback(port.close)
    return ports


def load_proofs(settings: HealthSettings, observer: Observer) -> Proofs | None:
    """What checks progress, where others than gateways may write it. Raises SettingsError."""
    if not settings.outside_progress:
        return None
    file = Path(settings.key).expanduser() if settings.key else None
    try:
        key = read_key(file or settings.home / KEYS_DIRECTORY / CELL_KEY_FILE)
    except TokensError as error:
        raise SettingsError(
            f"setting outside_progress needs the key of the cell's gateways: {error}. Give --key FILE"
        ) from error
    return Proofs(key, observer.refused)


def load_table(settings: HealthSettings) -> Table:
    """The table of signals that the settings name. Raises SettingsError."""
    file = settings.signals_file
    return table("signals_file", file, parse, package="services.health", shipped="signals.toml")


def _work(
    processor: Processor,
    observer: Observer,
    patience: Patience,
    *,
    until: Callable[[], bool],
    wait: Callable[[float], bool],
) -> None:
    """Turn after turn."""
    while not until():
        try:
            processor.turn(TURN_S)
        except PortError as error:
            wait(patience.failed(error))
        else:
            observer.turned()
            patience.well()


def _on_streams(
    settings: HealthSettings,
    ports: Ports,
    observer: Observer,
    patience: Patience,
    until: Callable[[], bool],
) -> None:
    import asyncio  # A loop of its own has no use for it.

    from services.health.host import Host, serve

    def host() -> Host:
        made = Host(
            settings.cell,
            ports,
            settings.rules(),
            load_table(settings),
            observer,
            stalled_ms=settings.stream_stalled_s * 1000,
            proofs=load_proofs(settings, observer),
        )
        observer.attach(made.judge, made.gauges)
        return made

    asyncio.run(serve(open_streams(settings, "health"), host, observer, patience, until))
