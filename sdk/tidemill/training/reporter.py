"""The side threads of a session: one watches the ask file and the loop, one talks to the gateway.

The training thread only leaves numbers behind (Loop) and is never waited for. The threads are daemons and never raise:
what goes wrong is logged once a kind, and training goes on.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tidemill.training import checkpoint
from tidemill.training.core import (
    NEVER,
    Ask,
    AskAdvice,
    Call,
    SendAnswer,
    SendProgress,
    SendReport,
    TrainerCore,
)
from tidemill.training.environment import Identity
from tidemill.training.gateway import Gateway, GatewayError, GrpcGateway
from tidemill.training.spool import Spool
from tidemill.v1 import reports_pb2 as reports_pb

WATCH_EVERY_S: Final = 0.1
JOIN_S: Final = 1.0
_log = logging.getLogger("tidemill.training")


class Loop:
    """What the training thread leaves behind for the side threads, and they for it. Plain numbers: no lock."""

    __slots__ = ("busy_ns", "measures", "metrics", "phase", "save_at", "step", "steps", "stop_at")

    def __init__(self) -> None:
        self.step = 0
        self.steps = 0
        # Of all those steps, the time in which the others were not waited for; only if the program says when it waits.
        self.busy_ns = 0
        self.measures = False
        self.phase = "setup"
        self.metrics: Mapping[str, object] = {}
        self.save_at = -1
        self.stop_at = NEVER


class AskFile:
    """Reads the agent's ask file when it has changed; it is replaced whole, so what is read is whole."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._seen = path, (0, 0)

    def changed(self) -> Ask | None:
        """The ask, if it is not the one of the last call. Raises OSError, ValueError."""
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        now = (status.st_ino, status.st_mtime_ns)
        if now == self._seen:
            return None
        body = json.loads(self._path.read_bytes())
        self._seen = now
        return Ask(int(body["ask"]), int(body["at_step"]), bool(body["stop_after_save"]))


class Reporter:
    """Owns the core of one session, and the threads around it."""

    def __init__(
        self,
        identity: Identity,
        core: TrainerCore,
        loop: Loop,
        *,
        connect: Callable[[Identity], Gateway] = GrpcGateway,
    ) -> None:
        self._me, self._core, self._loop, self._connect = identity, core, loop, connect
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._watched = threading.Event()
        self._closing = threading.Event()
        self._removing: threading.Thread | None = None
        self._spool = Spool(identity.spool_dir)
        self._ask_file = AskFile(identity.ask_file)
        self._said: set[str] = set()
        core.add_spooled(self._spool.left_over())
        self._watcher = threading.Thread(target=self._watch, name="tidemill-watch", daemon=True)
        self._talker = threading.Thread(target=self._talk, name="tidemill-report", daemon=True)

    def start(self) -> None:
        """Begin to watch and to talk."""
        self._watcher.start()
        self._talker.start()

    def report(self, report: reports_pb.Report) -> None:
        """Spool a checkpoint report; it is on disk when this returns, and sent as soon as the gateway takes it."""
        if os.getpid() != self._pid:
            return  # A forked child, such as a data loader, speaks for nobody.
        with self._changed:
            self._core.add_report(self._spool.add(report), report)
            self._changed.notify_all()

    def save_attempted(self, step: int) -> None:
        """The training thread is through with its part of a save."""
        with self._changed:
            self._core.save_attempted(step)

    def close(self, *, drain_s: float) -> bool:
        """Send what is owed for at most `drain_s`, then end the threads; whether everything was sent."""
        if os.getpid() != self._pid:
            return True
        self._watched.set()
        self._watcher.join(timeout=JOIN_S)
        self._look()
        with self._changed:
            drained = self._changed.wait_for(lambda: not self._core.owes_reports, timeout=drain_s)
            self._closing.set()
            self._changed.notify_all()
        self._talker.join(timeout=JOIN_S)
        return drained

    # ------------------------------------------------------------ watch

    def _watch(self) -> None:
        while not self._watched.wait(WATCH_EVERY_S):
            self._look()

    def _look(self) -> None:
        """Carry numbers between the loop and the core, and the ask file in."""
        loop = self._loop
        ask = None
        try:
            ask = self._ask_file.changed()
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._say("ask", f"cannot read the ask file {self._me.ask_file}: {error}")
        metrics = _numbers(loop.metrics)
        with self._changed:
            if ask is not None:
                self._core.observe_ask(ask)
            self._core.observe_steps(
                loop.step,
                loop.steps,
                _now_ms(),
                at_ms=time.time_ns() // 1_000_000,
                phase=loop.phase,
                busy_us=loop.busy_ns // 1000 if loop.measures else 0,
                metrics=metrics,
            )
            loop.save_at, loop.stop_at = self._core.save_at, self._core.stop_at
            self._changed.notify_all()

    # ------------------------------------------------------------ talk

    def _talk(self) -> None:
        gateway: Gateway | None = None
        while True:
            call = self._next_call()
            if call is None:
                break
            try:
                gateway = gateway or self._connect(self._me)
                self._make(gateway, call)
            except GatewayError as error:
                self._failed(call, str(error), refused=error.refused)
            except Exception as error:  # noqa: BLE001  # never ends training, whatever a library raises
                self._failed(call, repr(error), refused=False)
            else:
                self._settle(call, partial(self._core.sent, call))
        if gateway is not None:
            gateway.close()

    def _next_call(self) -> Call | None:
        """Waits for something to send; None when the session closes."""
        with self._changed:
            while not self._closing.is_set():
                now = _now_ms()
                call = self._core.due(now)
                if call is not None:
                    return call
                self._changed.wait(min(60.0, (self._core.next_due_ms(now) - now) / 1000))
        return None

    def _make(self, gateway: Gateway, call: Call) -> None:
        match call:
            case SendReport(report=report) | SendAnswer(report=report):
                gateway.report_checkpoint(self._signed(report))
            case SendProgress(records=records):
                gateway.report_progress(records)
            case AskAdvice():
                advice = gateway.advice()
                with self._changed:
                    self._core.advised(
                        advice.interval_ms, advice.durable_step, advice.released_steps
                    )
                self._remove_released()

    def _signed(self, report: reports_pb.Report) -> reports_pb.Report:
        """With who says it; the gateway replaces it by who the token says it is."""
        report.principal.name, report.principal.method = f"job:{self._me.job}", "job-token"
        report.at_ms = report.at_ms or time.time_ns() // 1_000_000
        return report

    def _failed(self, call: Call, message: str, *, refused: bool) -> None:
        if refused:
            self._say(f"refused {message}", f"the cell refused a report for good: {message}")
        else:
            self._say("away", f"the gateway is away, training goes on: {message}")
        chance = random.uniform(0.5, 1.0)  # noqa: S311  # spreads the ranks of a gang
        self._settle(call, partial(self._core.not_sent, call, refused=refused, chance=chance))

    def _settle(self, call: Call, change: Callable[[int], None]) -> None:
        with self._changed:
            before = self._core.owes_reports
            change(_now_ms())
            done = self._core.owes_reports < before
            self._changed.notify_all()
        if done and isinstance(call, SendReport):
            self._spool.remove(call.key)

    def _remove_released(self) -> None:
        """In a thread of its own: removing terabytes takes minutes, and reports must not wait for it."""
        if self._core.released and (self._removing is None or not self._removing.is_alive()):
            self._removing = threading.Thread(
                target=self._remove,
                args=(self._core.released,),
                name="tidemill-remove",
                daemon=True,
            )
            self._removing.start()

    def _remove(self, steps: Sequence[int]) -> None:
        """Remove what the registry no longer needs: ours, and of attempts before us. Never anything else."""
        for step in steps:
            removed = False
            for prefix in _prefixes(self._me):
                try:
                    removed |= checkpoint.remove(checkpoint.step_directory(prefix, step))
                except OSError as error:
                    self._say(
                        f"remove {step}", f"released checkpoint of step {step} stays: {error}"
                    )
            if removed:
                gone = reports_pb.Removed(job=self._me.job, step=step)
                self.report(reports_pb.Report(removed=gone))

    def _say(self, kind: str, message: str) -> None:
        """Log a kind of trouble once; a gateway that is away for a day is one line."""
        if kind not in self._said:
            self._said.add(kind)
            _log.warning(message)


def _prefixes(identity: Identity) -> list[Path]:
    """Our own prefix, and those of earlier attempts beside it ("a1" beside "a3")."""
    own = identity.checkpoint_dir
    if own.name != f"a{identity.attempt}":
        return [own]
    earlier = [own.with_name(f"a{number}") for number in range(1, identity.attempt)]
    return [own, *(path for path in earlier if path.is_dir())]


def _numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    """At most 16 finite numbers; what is not a number is left out rather than ending anything."""
    numbers: dict[str, float] = {}
    for name, value in list(metrics.items())[:16]:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError, RuntimeError):
            continue
        if math.isfinite(number):
            numbers[name[:64]] = number
    return numbers


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
