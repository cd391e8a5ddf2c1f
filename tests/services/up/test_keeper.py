"""A cell is kept running, and what is said of it. Nothing runs: processes and time are the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.runtime.exits import FINAL, ExitCode
from services.up.children import Command, Ended
from services.up.keeper import SAY_EVERY_MS, Keeper
from services.up.supervision import Supervision

NAMES = ("scheduler-0", "scheduler-1", "gateway", "health", "agent")


class Script:
    """Processes that end when the test says, a clock that waiting moves, and a log."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.ends: list[tuple[int, Ended]] = []
        self.started: list[str] = []
        self.said: list[tuple[str, dict[str, Any]]] = []
        # Called at each wait.
        self.then: Callable[[], None] = lambda: None

    def start(self, command: Command) -> int:
        self.started.append(command.name)
        return 1

    def wait(self, timeout_s: float | None) -> list[Ended]:
        at_ms = self.ends[0][0] if self.ends else self.now_ms + 1_000
        wait_ms = max(0, at_ms - self.now_ms)
        self.now_ms += wait_ms if timeout_s is None else min(wait_ms, round(timeout_s * 1000))
        self.then()
        due = [end for at_ms, end in self.ends if at_ms <= self.now_ms]
        self.ends = [(at_ms, end) for at_ms, end in self.ends if at_ms > self.now_ms]
        return due

    def _say(self, event: str, **fields: Any) -> None:
        self.said.append((event, fields))

    info = warning = error = _say


def kept(script: Script) -> Keeper:
    keeper = Keeper(
        [Command(name, ()) for name in NAMES],
        script,
        Supervision(FINAL, needed=[["gateway"], ["scheduler-0", "scheduler-1"]]),
        now_ms=lambda: script.now_ms,
        log=lambda: script,  # type: ignore[arg-type, return-value]
    )
    keeper.start()
    return keeper


def test_a_gateway_that_reads_a_long_log_is_waited_for() -> None:
    script = Script()
    keeper = kept(script)
    assert keeper.until_ready("gateway", lambda: script.now_ms >= 100_000) is None
    assert script.said == [
        ("gateway_still_reading", {"waited_seconds": waited}) for waited in (30, 60, 90)
    ]


def test_a_gateway_that_does_not_live_is_not_waited_for() -> None:
    script = Script()
    keeper = kept(script)
    script.ends = [(at_ms, Ended("gateway", 1)) for at_ms in range(1_000, 60_000, 5_000)]
    assert keeper.until_ready("gateway", lambda: False) == ExitCode.UNAVAILABLE
    assert script.now_ms == SAY_EVERY_MS
    assert script.said[-1][0] == "gateway_not_ready"


def test_a_gateway_that_ended_once_is_waited_for_as_any() -> None:
    script = Script()
    keeper = kept(script)
    script.ends = [(at_ms, Ended("gateway", -9)) for at_ms in (20_000, 40_000, 70_000)]
    assert keeper.until_ready("gateway", lambda: script.now_ms >= 100_000) is None


def test_what_is_wrong_with_the_command_ends_it_before_it_is_up() -> None:
    script = Script()
    keeper = kept(script)
    script.ends = [(100, Ended("agent", ExitCode.SETTINGS))]
    assert keeper.until_ready("gateway", lambda: False) == ExitCode.SETTINGS


def up(script: Script) -> Keeper:
    keeper = kept(script)
    assert keeper.until_ready("gateway", lambda: True) is None
    script.started.clear()
    return keeper


def test_a_child_that_needs_a_person_stays_down_and_the_others_go_on() -> None:
    script = Script()
    keeper = up(script)
    script.ends = [
        (1_000, Ended("health", ExitCode.LOG_NEWER)),
        (2_000, Ended("scheduler-0", ExitCode.LOG_NEWER)),
        (3_000, Ended("agent", -9)),
        (4_000, Ended("scheduler-1", ExitCode.LOG_NEWER)),
    ]
    assert keeper.keep() == ExitCode.LOG_NEWER
    assert script.started == ["agent"]
    needs = [fields for event, fields in script.said if event == "child_needs_help"]
    assert [(each["child"], each["cell_goes_on"]) for each in needs] == [
        ("health", True),
        ("scheduler-0", True),
        ("scheduler-1", False),
    ]


def test_a_gateway_that_needs_a_person_ends_the_cell() -> None:
    script = Script()
    keeper = up(script)
    script.ends = [(1_000, Ended("gateway", ExitCode.LOG_DAMAGED))]
    assert keeper.keep() == ExitCode.LOG_DAMAGED


def test_asked_to_end_it_starts_nothing_more() -> None:
    script = Script()
    keeper = up(script)
    script.ends = [(1_000, Ended("agent", 1))]

    def stop() -> None:
        keeper.stopping = True

    script.then = stop
    assert keeper.keep() == ExitCode.STOPPED
    assert script.started == []
