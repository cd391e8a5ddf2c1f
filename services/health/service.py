"""`tidemilld health`: judges the nodes, jobs and devices of a cell by what they say and by their silence."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from services.health.driver import Processor
from services.health.judge import TOPICS, Ports
from services.health.metrics import Observer
from services.health.settings import HealthSettings
from services.health.table import Table, TableError, parse
from services.runtime import settings as runtime_settings
from services.runtime.exits import ExitCode, exit_code_of
from services.runtime.ports import PortError
from services.runtime.settings import SettingsError
from services.runtime.shutdown import Shutdown
from services.runtime.telemetry import Telemetry
from services.runtime.wiring import open_cell

# Without telemetry it looks this often; a request to stop is noticed after it.
TURN_S: Final = 1.0
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 2.0


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
    rules, table, observer = settings.rules(), load_table(settings), Observer(telemetry)
    with contextlib.ExitStack() as closing:
        cell = open_cell(settings, "health")
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
        try:
            processor = Processor(settings.cell, ports, rules, table, observer)
            observer.attach(processor.judge)
            _work(processor, observer, settings.weather_patience_s, until=until, wait=wait)
        except Exception as error:
            observer.ended(error, exit_code_of(error))
            raise


def load_table(settings: HealthSettings) -> Table:
    """The table of signals that the settings name. Raises SettingsError."""
    name = settings.signals_file
    try:
        if not name:
            shipped = resources.files("services.health").joinpath("signals.toml")
            return parse(shipped.read_text(encoding="utf-8"), "signals.toml")
        return parse(Path(name).expanduser().read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError, TableError) as error:
        raise SettingsError(f"setting signals_file: {error}") from error


def _work(
    processor: Processor,
    observer: Observer,
    patience_s: int,
    *,
    until: Callable[[], bool],
    wait: Callable[[float], bool],
) -> None:
    """Turn after turn; weather is tried again, longer apart each time, until patience ends."""
    failing_since, backoff_s = 0.0, _BACKOFF_FIRST_S
    while not until():
        try:
            processor.turn(TURN_S)
        except PortError as error:
            now = time.monotonic()
            failing_since = failing_since or now
            if exit_code_of(error) is not ExitCode.UNAVAILABLE or now - failing_since > patience_s:
                raise
            observer.failing(error)
            wait(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
        else:
            observer.turned()
            failing_since, backoff_s = 0.0, _BACKOFF_FIRST_S
