"""`tidemilld up`: runs a whole cell on this machine and keeps it running.

Starts scheduler, gateway, health and agents as processes of their own, prints where the cell is, and starts again what
ends unasked. Ctrl-C or SIGTERM ends them in the reverse order. Jobs go on under their supervisors and are found again
by the next `up`, unless --end-runs is given.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

from msgspec import Meta

from services.runtime.exits import FINAL
from services.runtime.settings import CellSettings, SettingsError, load
from services.runtime.tokens import CellKeys, TokensError, prepare_keys
from services.up.children import Children, Command, monotonic_ms, service
from services.up.keeper import Keeper
from services.up.supervision import Supervision

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_GRACE_S: Final = 15.0
_GATEWAY: Final = "gateway"
ADDRESS_FILE: Final = "gateway.addr"


class UpSettings(CellSettings, frozen=True, kw_only=True):
    """What `tidemilld up` is told, beside what all services are."""

    listen: Annotated[
        str,
        Meta(description="Address of the API, HOST:PORT; port 0: a free one, kept while up runs"),
    ] = "127.0.0.1:0"
    schedulers: Annotated[
        int, Meta(ge=1, le=16, description="Schedulers: one leads, the others stand by")
    ] = 1
    agents: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Agents on this host, each a node; more than one only makes sense with --fake-gpus",
        ),
    ] = 1
    node: Annotated[
        str,
        Meta(
            description="Name of the node; with several agents, followed by -0, -1, ... Empty: the host's name"
        ),
    ] = ""
    fake_gpus: Annotated[
        tuple[str, ...],
        Meta(description="Simulated devices for each agent, like 8xH100; empty: what the host has"),
    ] = ()
    end_runs: Annotated[
        bool, Meta(description="On a clean end, end the running jobs' processes too")
    ] = False


def main(argv: Sequence[str]) -> int:
    """Run the cell until asked to end; the exit code."""
    summary = (__doc__ or "").partition("\n")[0].partition(": ")[2]
    settings = load(UpSettings, "up", argv, summary=summary)
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _only_one(settings.home / "up.lock"):
        return _Up(settings).run()


def _only_one(path: Path) -> TextIO:
    """Held while we run; raises SettingsError when another `up` holds it."""
    lock = path.open("a+", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise SettingsError(
            f"another `tidemilld up` runs this cell ({path.parent}): end it first, or give another --cell or --directory"
        ) from None
    return lock


def _prepared(settings: UpSettings) -> CellKeys:
    try:
        return prepare_keys(settings.home)
    except TokensError as error:
        raise SettingsError(str(error)) from error


class _Up:
    """One run of a cell."""

    def __init__(self, settings: UpSettings) -> None:
        self._settings = settings
        self._keys = prepare_keys(settings.home)
        started = commands(settings, _kept_address(settings.listen))
        schedulers = [command.name for command in started if command.kind == "scheduler"]
        self._children = Children(os.environ)
        self._keeper = Keeper(
            started,
            self._children,
            Supervision(FINAL, needed=[[_GATEWAY], schedulers]),
            now_ms=monotonic_ms,
            log=self._log,
        )

    def run(self) -> int:
        """Start, supervise, end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        answers_at = self._settings.home / ADDRESS_FILE
        answers_at.unlink(missing_ok=True)
        try:
            self._keeper.start()
            code = self._keeper.until_ready(_GATEWAY, answers_at.exists)
            if code is None:
                self._say_where()
                code = self._keeper.keep()
        finally:
            self._children.stop(grace_s=_GRACE_S)
            self._children.close()
        self._say_what_goes_on()
        return code

    def _log(self) -> FilteringBoundLogger:
        """Loaded when there is something to say: at rest a supervisor should weigh little."""
        from services.runtime.telemetry import configure_log

        return configure_log(self._settings, "up", sys.stderr)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._keeper.stopping = True

    def _say_where(self) -> None:
        """For a person: where the cell is, and what to do next."""
        address = (self._settings.home / ADDRESS_FILE).read_text(encoding="ascii").strip()
        env = f"TIDEMILL_GATEWAY={address} TIDEMILL_TOKEN=$(cat {self._keys.admin_token})"
        simulated = (
            f"  devices  simulated, {', '.join(self._settings.fake_gpus)} on each node\n"
            if self._settings.fake_gpus
            else ""
        )
        print(
            f"\nTidemill cell {self._settings.cell!r} is up.\n"
            f"  gateway  {address}\n"
            f"  token    {self._keys.admin_token}\n"
            f"{simulated}"
            "\nNext, in another terminal:\n"
            "  tidemill nodes\n"
            f"  tidemill submit --cpu 1 --watch -- python -c 'print(\"hello\")'\n"
            "  tidemill jobs -w\n"
            f"\nElsewhere on this machine: {env}\n"
            "Ctrl-C ends the cell.\n",
            flush=True,
        )

    def _say_what_goes_on(self) -> None:
        if not self._settings.end_runs and self._settings.agents and sys.stdout.isatty():
            print("Ended. Jobs that ran go on; the next `tidemilld up` finds them again.")


def commands(settings: UpSettings, listen: str) -> list[Command]:
    """The children in the order they are started in."""
    shared = _shared_flags(settings)
    found = [_scheduler(i, settings.schedulers, shared) for i in range(settings.schedulers)]
    found.append(service(_GATEWAY, *shared, "--listen", listen))
    found.append(service("health", *shared))
    found += [_agent(settings, i, listen, shared) for i in range(settings.agents)]
    return found


def _scheduler(index: int, count: int, shared: Sequence[str]) -> Command:
    name = "scheduler" if count == 1 else f"scheduler-{index}"
    return Command(name, service("scheduler", *shared).argv)


def _agent(settings: UpSettings, index: int, gateway: str, shared: Sequence[str]) -> Command:
    base = settings.node or socket.gethostname().partition(".")[0]
    node = base if settings.agents == 1 else f"{base}-{index}"
    flags = [
        *shared,
        "--gateway",
        gateway,
        "--node",
        node,
        "--state",
        str(settings.home / "agents" / node),
    ]
    if settings.fake_gpus:
        flags += ["--fake-gpus", ",".join(settings.fake_gpus)]
    if settings.end_runs:
        flags.append("--end-runs")
    return Command(
        f"agent-{index}" if settings.agents > 1 else "agent", service("agent", *flags).argv
    )


def _shared_flags(settings: UpSettings) -> list[str]:
    """What differs from the defaults and every service understands. Ports of monitors are each child's own."""
    flags = []
    for field in CellSettings.__struct_fields__:
        value, default = getattr(settings, field), getattr(CellSettings(), field)
        if value != default and field != "monitor_listen":
            flags += [
                "--" + field.replace("_", "-"),
                ",".join(value) if isinstance(value, tuple) else str(value),
            ]
    return flags


def _kept_address(listen: str) -> str:
    """With a port that stays the same when the gateway is started again."""
    host, _, port = listen.rpartition(":")
    if port != "0":
        return listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as free:
        free.bind((host.strip("[]"), 0))
        return f"{host}:{free.getsockname()[1]}"
