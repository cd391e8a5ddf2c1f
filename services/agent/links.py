"""The links of this node's network interfaces, as sysfs shows them. Judges nothing: a flap is told as it was seen.

A link that went down and came back between two looks is known by the kernel's count of carrier changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from services.agent.inventory import NETWORK, is_up

# Of one look; a port that flaps faster than that is down often enough.
TURNS_MAX: Final = 8


class LinkChange(msgspec.Struct, frozen=True):
    """A link is up or down; `changes` is the kernel's count of carrier changes."""

    nic: str
    up: bool
    changes: int


class Links:
    """Looks at the named interfaces. An interface that is gone is down."""

    def __init__(self, names: Iterable[str], root: Path = NETWORK) -> None:
        self._root = root
        self._names = tuple(names)
        self._told: dict[str, LinkChange] = {}

    def look(self) -> list[LinkChange]:
        """What changed since the last look, in the order in which it happened; at first, what is."""
        told: list[LinkChange] = []
        for name in self._names:
            now, before = self._read(name), self._told.get(name)
            if before is not None and now == before:
                continue
            self._told[name] = now
            turned = replace(now, up=not now.up)
            turns = 0 if before is None else min((now.changes - before.changes) // 2, TURNS_MAX)
            if before is not None and now.up == before.up:
                told += [turned, now] * turns
            else:
                told += [now, turned] * turns + [now]
        return told

    def say_again(self) -> None:
        """Whoever was told has gone: the next look tells all."""
        self._told.clear()

    def _read(self, name: str) -> LinkChange:
        folder = self._root / name
        try:
            changes = int((folder / "carrier_changes").read_text())
        except (OSError, ValueError):
            changes = 0
        return LinkChange(name, is_up(folder), changes)
