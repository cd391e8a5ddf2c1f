"""`tidemilld scheduler`: decides for a cell; the first of several leads, the others stand by, ready to take over."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from services.runtime import settings as runtime_settings
from services.runtime.exits import ExitCode, exit_code_of
from services.runtime.patience import Patience
from services.runtime.ports import PortError
from services.runtime.shutdown import Shutdown
from services.runtime.telemetry import Telemetry
from services.runtime.topics import LEADER_INPUTS
from services.runtime.wiring import open_cell
from services.scheduler.driver import Scheduler
from services.scheduler.observer import Observer
from services.scheduler.phases import Ports, Rules
from services.scheduler.settings import SchedulerSettings

# A turn waits this long for something to do; a request to stop is noticed after it.
TURN_S: Final = 0.5


def main(argv: Sequence[str]) -> int:
    """Run until asked to stop; answers the exit code. Errors that end it say what to do."""
    settings = runtime_settings.load(SchedulerSettings, "scheduler", argv, summary=__doc__)
    shutdown = Shutdown()
    shutdown.install()
    with contextlib.ExitStack() as closing:
        telemetry = Telemetry(settings, "scheduler")
        closing.callback(telemetry.close)
        run(
            settings,
            settings.rules(),
            telemetry,
            until=lambda _: shutdown.asked,
            wait=shutdown.wait,
        )
    return ExitCode.STOPPED


def run(
    settings: SchedulerSettings,
    rules: Rules,
    telemetry: Telemetry,
    *,
    until: Callable[[Scheduler], bool],
    wait: Callable[[float], bool],
) -> None:
    """Work until `until` holds, then hand over. `wait` sleeps between tries in bad weather."""
    # Entities are no work for the collector of cycles: look less often.
    gc.set_threshold(50_000, 20, 50)
    observer = Observer(telemetry)
    with contextlib.ExitStack() as closing:
        cell = open_cell(settings, "scheduler")
        closing.callback(cell.close)
        ports = Ports(
            log=cell.event_log(),
            inputs=cell.inputs([topic.suffix for topic in LEADER_INPUTS]),
            snapshots=cell.snapshots(),
            leadership=cell.leadership(rules.leader),
            clock=cell.clock,
        )
        saver = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshots")
        rules = msgspec.structs.replace(rules, background=saver.submit)
        for port in (ports.leadership, ports.snapshots, ports.inputs, ports.log):
            closing.callback(port.close)
        closing.callback(saver.shutdown)  # First: what is being saved is saved whole.
        try:
            scheduler = Scheduler(settings.cell, ports, rules, observer)
            observer.attach(scheduler)
            patience = Patience(settings.weather_patience_s, observer.failing)
            _work(scheduler, ports, observer, patience, until=until, wait=wait)
            scheduler.hand_over()
        except Exception as error:
            observer.ended(error, exit_code_of(error))
            raise


def _work(
    scheduler: Scheduler,
    ports: Ports,
    observer: Observer,
    patience: Patience,
    *,
    until: Callable[[Scheduler], bool],
    wait: Callable[[float], bool],
) -> None:
    """Turn after turn."""
    while not until(scheduler):
        try:
            scheduler.turn(TURN_S)
            observer.turned(ports.inputs)
        except PortError as error:
            wait(patience.failed(error))
        else:
            patience.well()
