"""The entry being written: facts take effect on the working cluster as they are recorded, and are sealed by the chain.

The only place where the leader changes the cluster. Grows past one record never: a full entry is sealed and the next
begun before what is being recorded whole (an input, a due time, a decision), so a leader that dies between two entries
leaves no half of it behind (decision 0024). It never decides anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec.structs import replace

from services.runtime import chain, codec
from services.runtime.ports import InputRecord
from statemachines.cluster import Cluster
from statemachines.entry import Entry, Position, Recorded
from statemachines.facts import Fact, InputParked

# A record of the log stays below this; brokers take 1 MB by default, and the entry's header needs little.
ENTRY_BYTES: Final = 900_000
PARKED_BYTES: Final = 4096


class UnfitError(Exception):
    """This input cannot be decided: undecodable, or not allowed. Raised before any fact of it is recorded."""


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """An entry and the record that stores it; its offset is -1 until it has been read back."""

    entry: Entry
    value: bytes


def seal(
    cluster: Cluster,
    *,
    term: int,
    at_ms: int,
    consumed: Sequence[Position],
    facts: Sequence[Recorded],
    encoded: Sequence[bytes],
) -> Sealed:
    """The entry of these facts that extends the cluster's head; `encoded` are the facts as codec.encode_fact has them."""
    body = codec.join_body(consumed, encoded)
    prev, cell = cluster.head, cluster.cell
    digest = chain.entry_digest(prev=prev, cell=cell, term=term, at_ms=at_ms, body=body)
    value = codec.encode_entry(cell=cell, term=term, prev=prev, at_ms=at_ms, body=body)
    return Sealed(Entry(-1, cell, term, prev, digest, at_ms, tuple(consumed), tuple(facts)), value)


def fits(facts: Sequence[Fact]) -> bool:
    """Whether one entry can hold these facts."""
    return sum(len(codec.encode_fact(Recorded(fact))) for fact in facts) <= ENTRY_BYTES


class Draft:
    """One step's entries. `by` and `input` name what causes the facts that are recorded next."""

    def __init__(self, cluster: Cluster, *, term: int, now_ms: int) -> None:
        self.cluster = cluster
        self.now_ms = now_ms
        self.by = ""
        self.weather: Counter[str] = Counter()
        self.sealed: list[Sealed] = []
        self._term = term
        self._input = 0
        self._open: InputRecord | None = None
        self._facts: list[Recorded] = []
        self._encoded: list[bytes] = []
        self._bytes = 0
        # Where what is being recorded whole begins among the facts, outermost first.
        self._begins: list[int] = []
        self._ranges: list[Position] = []
        self._counted = 0  # Offsets in all ranges.

    # --- facts

    def record(self, fact: Fact) -> None:
        """A fact becomes true; raises IllegalTransition when the fold says that it cannot (a bug of ours)."""
        recorded = Recorded(fact, self.by, self._input)
        encoded = codec.encode_fact(recorded)
        while self._facts and self._bytes + len(encoded) > ENTRY_BYTES:
            self._split()
            recorded = Recorded(fact, self.by, self._input)
            encoded = codec.encode_fact(recorded)
        self.cluster.apply(recorded, self.now_ms)
        self._facts.append(recorded)
        self._encoded.append(encoded)
        self._bytes += len(encoded)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What is recorded within goes into one entry, if one can hold it; an input is whole without asking."""
        self._begins.append(len(self._facts))
        try:
            yield
        finally:
            self._begins.pop()

    def ignore(self, why: str) -> None:
        """An input that changes nothing: late, repeated, or about what is gone. Counted for the metrics only."""
        self.weather[why] += 1

    # --- inputs

    def begin(self, record: InputRecord) -> bool:
        """Take an input in hand; False when it was decided before."""
        if record.offset < self._next(record.topic, record.partition):
            self.ignore("decided_before")
            return False
        self._open = record
        self._begins.append(len(self._facts))
        self._input = self._ordinal(record)
        return True

    def finish(self) -> None:
        """The input in hand is decided: its position moves with this entry."""
        record = self._open
        assert record is not None, "an input is finished once, after it was begun"
        topic, partition, after = record.topic, record.partition, record.offset + 1
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last.topic == topic and last.partition == partition:
            self._counted += after - last.next_offset
            self._ranges[-1] = Position(topic, partition, last.first_offset, after)
        else:
            first = self._next(topic, partition)
            self._counted += after - first
            self._ranges.append(Position(topic, partition, first, after))
        self._begins.pop()
        self._open, self._input, self.by = None, 0, ""

    def park(self, reason: str) -> None:
        """Keep the input in hand aside: it cannot be decided, and must not stop the cell."""
        record = self._open
        assert record is not None, "only an input in hand is parked"
        kept = record.value[:PARKED_BYTES]
        self.record(InputParked(record.topic, record.partition, record.offset, reason, kept))

    def _next(self, topic: str, partition: int) -> int:
        for done in reversed(self._ranges):
            if done.topic == topic and done.partition == partition:
                return done.next_offset
        return self.cluster.positions.get((topic, partition), 0)

    def _ordinal(self, record: InputRecord) -> int:
        """Its place among the offsets that this entry consumes, from 1; one past them all while it is undecided."""
        return self._counted + record.offset - self._next(record.topic, record.partition) + 1

    # --- entries

    def close(self) -> list[Sealed]:
        """All entries of the step, in order; none when nothing was recorded and no input decided."""
        assert self._open is None and not self._begins, "what is in hand is not decided yet"
        if self._facts or self._ranges:
            self._seal()
        return self.sealed

    def _split(self) -> None:
        """Seal what comes before the outermost that is being recorded whole; if that alone is too much, before the next."""
        at = next((begin for begin in self._begins if begin > 0), len(self._facts))
        carried = self._facts[at:]
        del self._facts[at:], self._encoded[at:]
        self._seal()
        self._begins = [max(0, begin - at) for begin in self._begins]
        self._facts = [replace(each, input=self._input) for each in carried]
        self._encoded = [codec.encode_fact(each) for each in self._facts]
        self._bytes = sum(len(each) for each in self._encoded)

    def _seal(self) -> None:
        sealed = seal(
            self.cluster,
            term=self._term,
            at_ms=self.now_ms,
            consumed=self._ranges,
            facts=self._facts,
            encoded=self._encoded,
        )
        self.cluster.seal(sealed.entry)
        self.sealed.append(sealed)
        self._facts, self._encoded, self._bytes, self._ranges, self._counted = [], [], 0, [], 0
        if self._open is not None:
            self._input = self._ordinal(self._open)
