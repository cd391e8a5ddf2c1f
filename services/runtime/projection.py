"""The log flattened: one record a fact, for those who read with other tools; and the port that stores them.

Values and a port; it reads no log and names no technology. The log stays the only truth: a sink may be emptied and
filled again at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Mark(msgspec.Struct, frozen=True, order=True, gc=False):
    """A fact's place in the log, and the digest of its entry, which must be found there again."""

    offset: int
    index: int
    digest: bytes


class FlatFact(msgspec.Struct, frozen=True, gc=False):
    """One fact: `value` is a serialised tidemill.v1.Fact, `kind` its type's name, `key` the entity it is about."""

    mark: Mark
    term: int
    at_ms: int
    kind: str
    key: str
    value: bytes


class ParkedInput(msgspec.Struct, frozen=True, gc=False):
    """A copy of an input that the leader parked; `whole` tells whether it is all of it.

    `mark` is the fact that parked it; topic, partition and position are where it lay.
    """

    mark: Mark
    topic: str
    partition: int
    position: int
    reason: str
    key: bytes
    value: bytes
    whole: bool


class FactSink(Protocol):
    """Where a projection goes.

    Order: facts of one key stay in the order written. Idempotence: what is stored already is left out, so beginning
    again at `resume` repeats nothing, whatever a crash left. One writer at a time.
    """

    def resume(self) -> Mark | None:
        """A fact up to which all are stored; None: begin at the start of the log."""

    def write(self, facts: Sequence[FlatFact], parked: Sequence[ParkedInput]) -> None:
        """Store them durably. On PortError some may be stored: call `resume` and begin there again."""

    def close(self) -> None:
        """Give back files, sockets and threads."""
