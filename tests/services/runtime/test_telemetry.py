"""The monitor answers on loopback, to those who know its name; log lines have one form."""

import http.client
import io
import json
import logging
import threading
import time
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client import Counter

from services.runtime.settings import CellSettings, SettingsError
from services.runtime.telemetry import Health, Telemetry, configure_log, parse_address


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry(
        CellSettings(monitor_hosts=("metrics.example",)), "pump", stream=io.StringIO()
    )
    yield telemetry
    telemetry.close()


def ask(
    telemetry: Telemetry, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(telemetry.address, timeout=30)
    connection.putrequest(method, path, skip_host=headers is not None and "Host" in headers)
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def test_it_is_not_ready_until_it_says_so_but_lives(telemetry: Telemetry) -> None:
    assert ask(telemetry, "/healthz") == (200, "ok\n")
    assert ask(telemetry, "/readyz") == (503, "start: starting\n")
    telemetry.health.ready()
    telemetry.health.wait("log", "reading the log")
    assert ask(telemetry, "/readyz") == (503, "log: reading the log\n")
    telemetry.health.ready("log")
    assert ask(telemetry, "/readyz") == (200, "ready\n")


def test_a_failed_process_is_neither_alive_nor_ready() -> None:
    health = Health()
    health.ready()
    health.fail("the log thread ended")
    assert health.liveness() == (False, "the log thread ended")
    assert health.readiness() == (False, "the log thread ended")


def test_metrics_are_those_of_the_registry(telemetry: Telemetry) -> None:
    Counter("tidemill_pumped_total", "Pumped.", registry=telemetry.registry).inc(3)
    status, text = ask(telemetry, "/metrics")
    assert status == 200
    assert "tidemill_pumped_total 3.0" in text
    assert 'tidemill_build_info{service="pump",version="0.1.0"} 1.0' in text
    assert "process_resident_memory_bytes" in text


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:80", "[::1]:1", "metrics.example", "METRICS.example:9"]
)
def test_it_answers_under_a_name_that_it_knows(telemetry: Telemetry, host: str) -> None:
    assert ask(telemetry, "/healthz", headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example"},
        {"Host": ""},
        {"Host": "[::1"},
        {"Host": "localhost", "Origin": "https://evil.example"},
        {"Host": "localhost", "Origin": "null"},
    ],
)
def test_a_web_page_that_rebinds_a_name_is_refused(
    telemetry: Telemetry, headers: dict[str, str]
) -> None:
    assert ask(telemetry, "/metrics", headers=headers)[0] == 403


def test_unknown_paths_are_told_what_there_is(telemetry: Telemetry) -> None:
    assert ask(telemetry, "/metric") == (404, "ask for /metrics, /healthz or /readyz\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_get_is_answered(telemetry: Telemetry, method: str) -> None:
    assert ask(telemetry, "/healthz", method=method)[0] == 501


def test_a_broken_request_does_not_end_the_monitor(telemetry: Telemetry) -> None:
    host, _, port = telemetry.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.connect()
    assert connection.sock is not None
    connection.sock.send(b"\0\xff garbage\r\n\r\n")
    connection.close()
    assert ask(telemetry, "/healthz")[0] == 200


def test_asked_nothing_it_uses_no_cpu(telemetry: Telemetry) -> None:
    before = time.process_time_ns()
    telemetry._monitor._thread.join(0.5)
    assert time.process_time_ns() - before < 50_000_000


def test_closing_gives_the_port_back() -> None:
    first = Telemetry(CellSettings(), "pump", stream=io.StringIO())
    first.close()
    second = Telemetry(CellSettings(monitor_listen=first.address), "pump", stream=io.StringIO())
    assert second.address == first.address
    second.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9100", ("::1", 9100)), ("h:1", ("h", 1))],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "monitor_listen") == address


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", ":80", "h:x", "h:99999", "http://h:1", "h:1/x", "[::1:1"]
)
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(SettingsError, match=r"setting monitor_listen: .* is not HOST:PORT"):
        parse_address(text, "monitor_listen")


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_json_where_no_person_reads_them() -> None:
    stream = io.StringIO()
    log = configure_log(CellSettings(cell="c", log_level="info"), "pump", stream)
    log.info("job_admitted", job="a", digest=b"\0")
    log.debug("hidden")
    (line,) = lines(stream)
    assert line.pop("timestamp")
    assert line == {
        "event": "job_admitted", "level": "info", "service": "pump", "cell": "c", "job": "a", "digest": "b'\\x00'",
    }  # fmt: skip


def test_a_logger_of_any_module_and_thread_says_whose_line_it_is() -> None:
    stream = io.StringIO()
    made_before = structlog.get_logger()
    configure_log(CellSettings(cell="c"), "pump", stream)
    thread = threading.Thread(target=made_before.info, args=("attached",))
    thread.start()
    thread.join()
    made_before.warning("library_said", service="other")
    assert [(line["service"], line["cell"]) for line in lines(stream)] == [
        ("pump", "c"),
        ("other", "c"),
    ]


def test_libraries_speak_in_the_same_form_from_warnings_on() -> None:
    stream = io.StringIO()
    configure_log(CellSettings(), "pump", stream)
    logging.getLogger("lib").info("no")
    logging.getLogger("lib").warning("to %s", "you")
    (line,) = lines(stream)
    assert (line["event"], line["library"], line["message"], line["level"]) == (
        "library_said", "lib", "to you", "warning",
    )  # fmt: skip


def test_an_exception_is_in_its_line() -> None:
    stream = io.StringIO()
    log = configure_log(CellSettings(), "pump", stream)
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("broke")
    assert "ValueError: why" in str(lines(stream)[0]["exception"])
