"""Devices that failed a probe, until the cell has heard of each. It never sends anything itself.

They are told by signals, which no gateway acknowledges and which are lost when no stream is open, as it is when a node
fences itself. A stream keeps its order, and a gateway that could not store one ends the stream before it acknowledges
a later beat: so a beat that was sent after a signal and is acknowledged speaks for both.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Failure(msgspec.Struct, frozen=True, gc=False):
    """A device that must not be granted again, and why."""

    device: int
    message: str
    at_ms: int


class Failures:
    """Those of which nobody is known to have heard."""

    def __init__(self, failures: Iterable[Failure] = ()) -> None:
        self._waiting = {failure.device: failure for failure in failures}
        # By device: the newest beat that was sent before it was told.
        self._told_after: dict[int, int] = {}

    def add(self, failure: Failure, *, told_after: int | None) -> None:
        """Take one; it stays until heard. `told_after`: the newest beat before it, if it is told at once."""
        self._waiting[failure.device] = failure
        self._told_after.pop(failure.device, None)
        if told_after is not None:
            self._told_after[failure.device] = told_after

    def tell(self, beat: int) -> tuple[Failure, ...]:
        """All, to be told now, after that beat."""
        self._told_after = dict.fromkeys(self._waiting, beat)
        return self.waiting()

    def heard(self, beat: int) -> bool:
        """That beat is acknowledged; whether it spoke for any."""
        heard = [device for device, after in self._told_after.items() if after < beat]
        for device in heard:
            del self._waiting[device], self._told_after[device]
        return bool(heard)

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self) -> tuple[Failure, ...]:
        """What must be told again after a restart."""
        return tuple(self._waiting.values())
