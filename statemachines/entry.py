"""An entry of the log as the fold takes it: decoded, with the digest of its stored bytes already computed."""

from __future__ import annotations

from typing import Final

import msgspec

from statemachines.facts import Fact

# Before the first entry.
GENESIS: Final = bytes(32)


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The range of one input partition that a step decided: first <= offset < next."""

    topic: str
    partition: int
    first_offset: int
    next_offset: int


class Recorded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fact with who asked for it; empty when the leader decided by itself."""

    fact: Fact
    by: str = ""
    input: int = 0


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record of the log, at its offset. `digest` covers prev, header and body as stored."""

    offset: int
    cell: str
    term: int
    prev: bytes
    digest: bytes
    at_ms: int
    consumed: tuple[Position, ...]
    facts: tuple[Recorded, ...]
