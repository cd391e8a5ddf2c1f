"""The table of signals (signals.toml): what a device's event or an interface's counter asks for, as data that an operator may replace.

Parses and checks; never reads a file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from enum import StrEnum, unique
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from services.health.messages import SignalKind
from statemachines.device import DeviceState


class TableError(ValueError):
    """The table cannot be used; the message says what to change."""


@unique
class Action(StrEnum):
    """What an event asks for, whoever made the device."""

    IGNORE = "ignore"
    RESTART_APP = "restart_app"
    RESET_DEVICE = "reset_device"
    REBOOT_NODE = "reboot_node"
    DRAIN_AFTER_JOB = "drain_after_job"
    DRAIN_NOW = "drain_now"
    RMA = "rma"
    RECOVERED = "recovered"
    FABRIC = "fabric"


# What a counter of an interface may ask for.
_OF_COUNTERS: Final = frozenset(
    {Action.IGNORE, Action.DRAIN_AFTER_JOB, Action.DRAIN_NOW, Action.FABRIC}
)
# Two and a half times what an agent lets pass before it tells a crossing again.
QUIET_LEAST_S: Final = 150
QUIET_S: Final = 600

# None: the device is not to blame, and keeps its condition.
CONDITION: Final[Mapping[Action, DeviceState | None]] = {
    Action.IGNORE: None,
    Action.RESTART_APP: None,
    Action.RESET_DEVICE: DeviceState.FAULTY,
    Action.REBOOT_NODE: DeviceState.FAULTY,
    Action.DRAIN_AFTER_JOB: DeviceState.DEGRADED,
    Action.DRAIN_NOW: DeviceState.FAULTY,
    Action.RMA: DeviceState.FAULTY,
    Action.RECOVERED: DeviceState.HEALTHY,
    Action.FABRIC: None,
}


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event. `again_count` of them on one device within `again_within_s` ask for `again_action` instead.

    `quiet_s`, of counters: what they ask for lasts until nothing was told of them for so long.
    """

    kind: SignalKind
    meaning: str
    action: Action
    # Empty: whatever the code.
    code: str = ""
    again_count: Annotated[int, Meta(ge=0)] = 0
    again_within_s: Annotated[int, Meta(ge=0)] = 0
    again_action: Action = Action.IGNORE
    quiet_s: Annotated[int, Meta(ge=QUIET_LEAST_S)] = QUIET_S


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signal: tuple[Line, ...]


class Table:
    """Lines by what they are about."""

    def __init__(self, lines: tuple[Line, ...]) -> None:
        self._lines = {(line.kind, line.code): line for line in lines}
        if len(self._lines) != len(lines):
            raise TableError("the table of signals has two lines of one kind and code: keep one")
        for line in lines:
            for action in (line.action, line.again_action):
                of_counter = line.kind is SignalKind.NIC_COUNTER
                if action not in _OF_COUNTERS if of_counter else action is Action.FABRIC:
                    raise TableError(f"{line.kind} {line.code}: {action} is not to be asked for")

    def find(self, kind: SignalKind, code: str) -> Line | None:
        """The line of exactly this event, else that of its kind."""
        return self._lines.get((kind, code)) or self._lines.get((kind, ""))


def parse(text: str, source: str) -> Table:
    """The table; raises TableError."""
    try:
        return Table(msgspec.convert(tomllib.loads(text), _File).signal)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TableError(f"{source}: {error}") from error
