"""Counters and rates of this node's interfaces, as sysfs shows them: what grows faster than the table allows is told.

Reading is apart from judging: `read` may hang on a wedged driver and belongs in a thread, `judge` is pure. A counter that
is missing is silently none; one that fell was reset (its driver was loaded again, it wrapped); neither is growth. What a
crossing asks for is the cell's business (services/health/signals.toml): here nothing is to blame.
"""

from __future__ import annotations

import tomllib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from services.agent.inventory import NETWORK, is_up, port_of, rate_mbps
from statemachines.values import NicSpec

# A crossing is told again this often for as long as it goes on: signals may be lost.
AGAIN_MS: Final = 60_000
RATE_LOW: Final = "rate_low"
INACTIVE: Final = "port_inactive"
_FOLDERS: Final = ("counters", "hw_counters")
_NAME: Final = r"^[A-Za-z0-9_]{1,50}$"


class CountersError(ValueError):
    """The table cannot be used; the message says what to change."""


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """More than `most` of a counter within `over_s` is told, by the name `code`; empty: the counter's."""

    counter: Annotated[str, Meta(pattern=_NAME)]
    over_s: Annotated[int, Meta(ge=10, le=86_400)]
    most: Annotated[int, Meta(ge=0)]
    code: Annotated[str, Meta(pattern=rf"{_NAME}|^$")] = ""

    @property
    def told_as(self) -> str:
        """The signal's code."""
        return self.code or self.counter


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is looked at. `rate_mbps` 0: a port should run as fast as the inventory says."""

    counter: tuple[Line, ...] = ()
    rate_mbps: Annotated[int, Meta(ge=0)] = 0


def parse(text: str, source: str) -> Table:
    """The table; raises CountersError."""
    try:
        table = msgspec.convert(tomllib.loads(text), Table)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise CountersError(f"{source}: {error}") from error
    codes = [line.told_as for line in table.counter] + [RATE_LOW, INACTIVE]
    twice = sorted({code for code in codes if codes.count(code) > 1})
    if twice:
        raise CountersError(f"{source}: {twice[0]} is told by two lines: give one another code")
    return table


class Reading(msgspec.Struct, frozen=True):
    """What an interface shows now; `rate_mbps` 0: nothing, as while it is down. `inactive`: how its port is instead."""

    nic: str
    rate_mbps: int
    counts: Mapping[str, int]
    inactive: str = ""


class Crossing(msgspec.Struct, frozen=True):
    """More than is borne: by how much a counter grew, or the rate that is left."""

    nic: str
    code: str
    value: int
    message: str


class _Window:
    """Growth of one counter within its line's time."""

    __slots__ = ("_before", "_grown", "_looked_ms", "_span_ms", "amount")

    def __init__(self, over_s: int) -> None:
        self.amount = 0
        self._span_ms = over_s * 1000
        self._before: int | None = None
        self._looked_ms = 0
        self._grown: deque[tuple[int, int]] = deque()

    def look(self, count: int | None, now_ms: int) -> None:
        """Bring `amount` up to date. The first look, and each after the counter was missing, is where it counts from."""
        while self._grown and self._grown[0][0] <= now_ms - self._span_ms:
            self.amount -= self._grown.popleft()[1]
        before, since_ms = self._before, now_ms - self._looked_ms
        self._before, self._looked_ms = count, now_ms
        if before is None or count is None or count <= before:
            return
        grown = count - before
        if since_ms > self._span_ms:  # Nobody looked for longer: its share of that time.
            grown = grown * self._span_ms // since_ms
        self._grown.append((now_ms, grown))
        self.amount += grown


class Counters:
    """Looks at these interfaces, but for the loopback."""

    def __init__(self, table: Table, nics: Iterable[NicSpec], root: Path = NETWORK) -> None:
        self._table, self._root = table, root
        self._names = tuple(dict.fromkeys(line.counter for line in table.counter))
        self._expected = {
            nic.name: table.rate_mbps or nic.speed_mbps for nic in nics if nic.kind != "loopback"
        }
        self._windows: dict[tuple[str, str], _Window] = {}
        self._told_ms: dict[tuple[str, str], int] = {}

    def read(self) -> list[Reading]:
        """What all of them show now."""
        return [_reading(self._root / name, self._names) for name in self._expected]

    def judge(self, readings: Sequence[Reading], now_ms: int) -> list[Crossing]:
        """What is too much, and was not told of late. `now_ms`: a clock that only grows."""
        found = [each for reading in readings for each in self._crossings(reading, now_ms)]
        told = []
        for crossing in found:
            key = (crossing.nic, crossing.code)
            if key not in self._told_ms or now_ms - self._told_ms[key] >= AGAIN_MS:
                self._told_ms[key] = now_ms
                told.append(crossing)
        return told

    def say_again(self) -> None:
        """Whoever was told has gone: what is too much then is told."""
        self._told_ms.clear()

    def _crossings(self, reading: Reading, now_ms: int) -> Iterable[Crossing]:
        nic = reading.nic
        for line in self._table.counter:
            window = self._windows.setdefault((nic, line.told_as), _Window(line.over_s))
            window.look(reading.counts.get(line.counter), now_ms)
            if window.amount > line.most:
                grew = f"{line.counter} grew by {window.amount} within {line.over_s} s"
                text = f"{grew}, more than {line.most}"
                yield Crossing(nic, line.told_as, window.amount, text)
        if 0 < reading.rate_mbps < self._expected[nic]:
            text = f"{reading.rate_mbps} Mb/s of {self._expected[nic]}"
            yield Crossing(nic, RATE_LOW, reading.rate_mbps, text)
        if reading.inactive:
            yield Crossing(nic, INACTIVE, 0, f"its port is {reading.inactive}")


def _reading(path: Path, names: Iterable[str]) -> Reading:
    port = port_of(path)
    folders = [path / "statistics"] + ([port / each for each in _FOLDERS] if port else [])
    counts = {}
    for name in names:
        for folder in folders:
            count = _count(folder / name)
            if count is not None:
                counts[name] = count
                break
    inactive = _inactive(port) if port is not None and is_up(path) else ""
    return Reading(path.name, rate_mbps(path), counts, inactive)


def _inactive(port: Path) -> str:
    """How an RDMA port is that its interface calls up and that can carry nothing; empty when it can."""
    state, physical = (_word(port / name) for name in ("state", "phys_state"))
    return "" if state in {"", "ACTIVE"} else f"{state} ({physical})" if physical else state


def _word(path: Path) -> str:
    """The word of "4: ACTIVE"."""
    try:
        return path.read_text().partition(":")[2].strip()
    except OSError:
        return ""


def _count(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
