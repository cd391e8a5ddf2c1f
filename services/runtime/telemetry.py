"""What a service shows of itself: log lines on stderr, metrics, and whether it lives and is ready.

One registry a process, every name begins with `tidemill_`; no job or node id is a label. The monitor is one thread
that sleeps until it is asked, answers GET alone, on loopback unless configured, and only under a name that it knows
(Host header), so that no web page can read it. Cores never import this.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Collection, MutableMapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from typing import Any, ClassVar, Final, TextIO
from urllib.parse import urlsplit

import structlog
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from services.runtime.settings import CellSettings, SettingsError

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_REQUEST_TIMEOUT_S: Final = 5.0
_LEVELS: Final = logging.getLevelNamesMapping()


class Health:
    """Whether the process lives (else: restart it) and is ready (else: ask another). Thread-safe."""

    def __init__(self) -> None:
        self._waiting = {"start": "starting"}
        self._failed = ""
        self._changing = threading.Lock()

    def wait(self, what: str, why: str) -> None:
        """Not ready as long as this holds; `what` names it for `ready`."""
        with self._changing:
            self._waiting[what] = why

    def ready(self, what: str = "start") -> None:
        """This no longer keeps it from being ready. A process begins with "start"."""
        with self._changing:
            self._waiting.pop(what, None)

    def fail(self, why: str) -> None:
        """Only a restart helps."""
        self._failed = why

    def liveness(self) -> tuple[bool, str]:
        """Whether it lives, and a line about it."""
        return not self._failed, self._failed or "ok"

    def readiness(self) -> tuple[bool, str]:
        """Whether it is ready, and a line about each thing that it waits for."""
        with self._changing:
            waiting = dict(self._waiting)
        alive, why = self.liveness()
        lines = [] if alive else [why]
        lines += [f"{what}: {reason}" for what, reason in sorted(waiting.items())]
        return not lines, "\n".join(lines) or "ready"


class Telemetry:
    """Log, metrics registry, health and monitor of one service; `close` gives back its port."""

    def __init__(
        self, settings: CellSettings, service: str, *, stream: TextIO = sys.stderr
    ) -> None:
        """Configure logging for the process and open the monitor. Raises SettingsError, OSError."""
        self.log = configure_log(settings, service, stream)
        # A gauge a counter, of the moment that it was made: nobody asks.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.health = Health()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        info = Gauge(
            "tidemill_build_info", "Always 1.", ["version", "service"], registry=self.registry
        )
        info.labels(version("tidemill-server"), service).set(1)
        self._monitor = Monitor(settings, self.registry, self.health)
        self.address = self._monitor.address
        self.log.info("monitor_listens", address=self.address)

    def close(self) -> None:
        """Stop answering."""
        self._monitor.close()


class Monitor:
    """Answers /metrics, /healthz and /readyz."""

    def __init__(self, settings: CellSettings, registry: CollectorRegistry, health: Health) -> None:
        host, port = parse_address(settings.monitor_listen, "monitor_listen")
        hosts = _LOOPBACK | {host.lower()} | {name.lower() for name in settings.monitor_hosts}
        self._server = _Server((host, port), partial(_Handler, registry, health, hosts))
        self._closing = False
        self._address = (host, int(self._server.server_address[1]))
        self.address = (
            f"[{host}]:{self._address[1]}" if ":" in host else f"{host}:{self._address[1]}"
        )
        self._thread = threading.Thread(target=self._serve, name="monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering; waits for the answer that is being given."""
        self._closing = True
        with contextlib.suppress(OSError):  # Only to wake it up.
            socket.create_connection(self._address, _REQUEST_TIMEOUT_S).close()
        self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()  # Sleeps until someone connects.


class _Server(HTTPServer):
    def __init__(self, address: tuple[str, int], handler: Callable[..., _Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # The base class asks the name service for our own name, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base's signature
        structlog.get_logger().debug("monitor_request_broken", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout: ClassVar[float | None] = _REQUEST_TIMEOUT_S
    server_version = "tidemill"
    sys_version = ""

    def __init__(
        self, registry: CollectorRegistry, health: Health, hosts: Collection[str], *args: Any
    ) -> None:
        self._registry, self._health, self._hosts = registry, health, hosts
        super().__init__(*args)  # Answers the request.

    def do_GET(self) -> None:
        if not self._known_host():
            self._answer(
                HTTPStatus.FORBIDDEN, "unknown Host or Origin: see setting monitor_hosts\n"
            )
            return
        match urlsplit(self.path).path:
            case "/metrics":
                self._answer(
                    HTTPStatus.OK,
                    generate_latest(self._registry).decode(),
                    CONTENT_TYPE_LATEST,
                )
            case "/healthz":
                self._answer_health(*self._health.liveness())
            case "/readyz":
                self._answer_health(*self._health.readiness())
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "ask for /metrics, /healthz or /readyz\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's signature
        structlog.get_logger().debug("monitor_asked", line=format % args)

    def _answer_health(self, good: bool, text: str) -> None:  # noqa: FBT001 - as Health answers
        self._answer(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, text + "\n")

    def _answer(
        self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8"
    ) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def _known_host(self) -> bool:
        names = [f"//{self.headers.get('Host', '')}"]
        if (origin := self.headers.get("Origin")) is not None:
            names.append(origin)
        return all(_host_of(name) in self._hosts for name in names)


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def parse_address(text: str, setting: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT or [IPV6]:PORT; raises SettingsError."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = (parts.hostname, parts.port) if not parts.path else (None, None)
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        raise SettingsError(f"setting {setting}: {text!r} is not HOST:PORT, such as 127.0.0.1:9100")
    return host, port


# --- log


def configure_log(
    settings: CellSettings, service: str, stream: TextIO = sys.stderr
) -> structlog.typing.FilteringBoundLogger:
    """One form of line for the process, other libraries' warnings included; the service's own logger."""
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not stream.isatty()
    )
    form: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    )
    level = _LEVELS[settings.log_level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            partial(_named, service=service, cell=settings.cell),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *form,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    logging.basicConfig(handlers=[_Forward(log)], level=max(level, logging.WARNING), force=True)
    return log


def _named(
    _logger: object, _method: str, event: MutableMapping[str, Any], *, service: str, cell: str
) -> MutableMapping[str, Any]:
    """Every line of the process says whose it is, whichever logger and thread wrote it."""
    return {"service": service, "cell": cell, **event}


class _Forward(logging.Handler):
    """Lines of libraries that use the standard library's logging."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(
            record.levelno, "library_said", library=record.name, message=record.getMessage(),
            exc_info=record.exc_info,
        )  # fmt: skip
