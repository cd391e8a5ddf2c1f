"""The process around it: settings, metrics, bad weather, and the real thing on a real file."""

from __future__ import annotations

import http.client
import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from services.health import service
from services.health.messages import NodeGone, SignalKind
from services.health.metrics import Observer
from services.health.settings import HealthSettings
from services.runtime.patience import Patience
from services.runtime.ports import InputGapError, PortError
from services.runtime.settings import SettingsError, load
from services.runtime.telemetry import Telemetry
from services.runtime.wiring import EmbeddedCell
from tests.services.health.stage import Stage
from tests.services.runtime.write import Writer


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def lines() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def telemetry(lines: io.StringIO) -> Iterator[Telemetry]:
    telemetry = Telemetry(HealthSettings(), "health", stream=lines)
    yield telemetry
    telemetry.close()


def ask(telemetry: Telemetry, path: str) -> str:
    connection = http.client.HTTPConnection(telemetry.address, timeout=30)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def test_settings_become_rules() -> None:
    settings = load(HealthSettings, "health", ["--name", "j", "--lost-after-ms", "20000"], {})
    rules = settings.rules()
    assert (rules.judge, rules.lost_after_ms, rules.suspect_after_ms) == ("j", 20_000, 6_000)
    assert HealthSettings().judge.endswith(f"-{os.getpid()}")


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingsError, match="lost_after_ms 6000 must be above suspect_after_ms"):
        HealthSettings(lost_after_ms=6_000).rules()


def test_another_table_of_signals_may_be_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[[signal]]\nkind = 'xid'\nmeaning = 'all'\naction = 'rma'")
    table = service.load_table(HealthSettings(signals_file=str(file)))
    assert table.find(SignalKind.XID, "1") is not None
    file.write_text("nonsense")
    for name in (str(file), str(tmp_path / "absent.toml")):
        with pytest.raises(SettingsError, match="setting signals_file"):
            service.load_table(HealthSettings(signals_file=name))


def test_what_it_watches_and_says_is_on_the_metrics_page(telemetry: Telemetry) -> None:
    stage = Stage()
    observer = Observer(telemetry)
    stage.notes = observer  # type: ignore[assignment]
    processor = stage.processor()
    assert "start: starting" in ask(telemetry, "/readyz")
    observer.attach(processor.judge)
    assert ask(telemetry, "/readyz") == "ready\n"
    stage.run(processor, 12_000)
    stage.publisher.publish([])
    page = ask(telemetry, "/metrics")
    for line in (
        "tidemill_health_nodes_watched 1.0",
        "tidemill_health_nodes_silent 1.0",
        "tidemill_health_path_heard 1.0",
        'tidemill_verdicts_total{verdict="NodeGone"} 1.0',
    ):
        assert line in page


def test_what_is_dropped_skipped_or_failing_is_counted_and_said(
    telemetry: Telemetry, lines: io.StringIO
) -> None:
    observer = Observer(telemetry)
    observer.unreadable("beats", "not a batch")
    observer.skipped(InputGapError("beats", 0, 3, 8))
    observer.skipped(
        InputGapError("beats", 1, 500, 0)
    )  # Made anew: nothing that is known was lost.
    observer.judged([NodeGone("n1", 1, 15_000, "silent for 15 s")])
    observer.failing(PortError("no broker"))
    assert "weather: no broker" in ask(telemetry, "/readyz")
    observer.turned()
    observer.ended(PortError("no broker"), 75)
    page = ask(telemetry, "/metrics")
    assert 'tidemill_telemetry_unreadable_total{topic="beats"} 1.0' in page
    assert 'tidemill_telemetry_skipped_total{topic="beats"} 5.0' in page
    assert '"verdict": "NodeGone"' in lines.getvalue()
    assert "health_ends" in lines.getvalue()


class Weather:
    """A processor whose turns fail as told."""

    def __init__(self, turns: list[Exception | None]) -> None:
        self.turns = turns

    def turn(self, _timeout_s: float) -> None:
        error = self.turns.pop(0)
        if error is not None:
            raise error


def work(telemetry: Telemetry, turns: list[Exception | None], patience_s: int = 60) -> list[float]:
    waited: list[float] = []

    def wait(s: float) -> bool:
        waited.append(s)
        return False

    weather, observer = Weather(turns), Observer(telemetry)
    service._work(
        weather,  # type: ignore[arg-type]
        observer,
        Patience(patience_s, observer.failing),
        until=lambda: not weather.turns,
        wait=wait,
    )
    return waited


def test_bad_weather_is_tried_again_longer_apart_and_then_forgotten(telemetry: Telemetry) -> None:
    down = PortError("no broker")
    waited = work(telemetry, [down, down, down, None, down, None])
    assert waited == [0.1, 0.2, 0.4, 0.1]


def test_patience_with_the_weather_ends(telemetry: Telemetry) -> None:
    with pytest.raises(PortError):
        work(telemetry, [PortError("no broker")] * 3, patience_s=-1)


def test_it_runs_on_a_real_cell_until_it_is_asked_to_stop(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    settings = HealthSettings(directory=str(tmp_path), cell="c")
    cell = EmbeddedCell(settings)
    log = cell.event_log()
    Writer(log).open_term()
    log.close()
    asked = iter([False, True])
    service.run(settings, telemetry, until=lambda: next(asked), wait=lambda _: False)
    cell.close()
    assert "tidemill_fold_offset" in ask(telemetry, "/metrics")


def test_what_ends_it_is_said(tmp_path: Path, telemetry: Telemetry, lines: io.StringIO) -> None:
    def until() -> bool:
        raise AssertionError("a bug")

    settings = HealthSettings(directory=str(tmp_path))
    with pytest.raises(AssertionError):
        service.run(settings, telemetry, until=until, wait=lambda _: False)
    assert '"why": "a bug"' in lines.getvalue()


def test_the_process_starts_says_so_and_ends_when_asked(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "services.health",
            "--directory",
            str(tmp_path),
            "--log-format",
            "json",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = ""
    while "recovered" not in seen:  # The suite's timeout ends a hang.
        line = process.stderr.readline()
        assert line, seen
        seen += line
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, seen + rest
