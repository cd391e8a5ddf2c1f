"""Keeps the children of a cell running until asked to end, or until nothing can go on without a person.

Decides by supervision.py alone and starts what it says; it never ends a child: whoever made the children does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from services.runtime.exits import ExitCode
from services.up.children import Command, Ended, exit_text
from services.up.supervision import Again, Down, Supervision

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# A gateway answers once it has read the log, which may take long; that it still does is said this often.
SAY_EVERY_MS: Final = 30_000
# One that was started so often meanwhile does not read, it fails.
STARTS_MAX: Final = 3
_LOOK_EVERY_S: Final = 0.05


class Processes(Protocol):
    """What runs commands."""

    def start(self, command: Command) -> int:
        """Start a child; its pid. Raises OSError."""

    def wait(self, timeout_s: float | None) -> list[Ended]:
        """Sleep until something ends or a signal comes, at most `timeout_s`; what has ended."""


class Keeper:
    """The children of one cell. `log` is called when there is something to say, `now_ms` is monotonic."""

    def __init__(
        self,
        commands: Sequence[Command],
        processes: Processes,
        watch: Supervision,
        *,
        now_ms: Callable[[], int],
        log: Callable[[], FilteringBoundLogger],
    ) -> None:
        self._commands = {command.name: command for command in commands}
        self._processes = processes
        self._watch = watch
        self._now_ms = now_ms
        self._log = log
        self._starts: dict[str, int] = dict.fromkeys(self._commands, 0)
        self._ready = False
        self.stopping = False

    def start(self) -> None:
        """Start all, in their order."""
        for command in self._commands.values():
            self._start(command)

    def until_ready(self, gateway: str, ready: Callable[[], bool]) -> int | None:
        """None once `ready`; the exit code when that will not happen. Patient while the gateway lives: it reads the log."""
        began_ms = said_ms = self._now_ms()
        starts = self._starts[gateway]
        while not self.stopping:
            if (code := self._turn(_LOOK_EVERY_S)) is not None:
                return code
            if ready():
                self._ready = True
                return None
            now_ms = self._now_ms()
            if now_ms - said_ms < SAY_EVERY_MS:
                continue
            waited_s = (now_ms - began_ms) // 1000
            if self._starts[gateway] - starts >= STARTS_MAX:
                self._log().error("gateway_not_ready", waited_seconds=waited_s)
                return ExitCode.UNAVAILABLE
            self._log().info("gateway_still_reading", waited_seconds=waited_s)
            said_ms, starts = now_ms, self._starts[gateway]
        return ExitCode.STOPPED

    def keep(self) -> int:
        """Look after them; the exit code once asked to end, or when a person is needed before anything goes on."""
        while not self.stopping:
            due_ms = self._watch.next_due_ms()
            wait_s = None if due_ms is None else max(0, due_ms - self._now_ms()) / 1000
            if (code := self._turn(wait_s)) is not None:
                return code
        return ExitCode.STOPPED

    def _turn(self, wait_s: float | None) -> int | None:
        for ended in self._processes.wait(wait_s):
            if self.stopping:
                return None
            verdict = self._watch.ended(ended.name, ended.code, self._now_ms())
            if isinstance(verdict, Again):
                wait_ms = max(0, verdict.at_ms - self._now_ms())
                self._log().warning(
                    "child_ended", child=ended.name, how=exit_text(ended.code), again_in_ms=wait_ms
                )
            elif self._is_final(verdict):
                return ended.code
        for name in self._watch.due(self._now_ms()) if not self.stopping else ():
            self._start(self._commands[name])
        return None

    def _is_final(self, down: Down) -> bool:
        """Without it nothing goes on; or somebody has just typed the command, and sees at once what is wrong with it."""
        final = down.over or not self._ready
        self._log().error(
            "child_needs_help", child=down.name, how=exit_text(down.code), cell_goes_on=not final
        )
        return final

    def _start(self, command: Command) -> None:
        self._processes.start(command)
        self._starts[command.name] += 1
        self._watch.started(command.name, self._now_ms())
