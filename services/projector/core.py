"""The projector's core: records of the log in, flat facts out. No I/O, no clock.

It takes exactly the entries that the fold takes, by the same rule, and keeps nothing of the state but the chain. Facts
are about an entity: a job (its attempts, runs and checkpoints included), a node (with its devices and NICs), a queue, a
request, an input topic, an incident, or the cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from services.runtime import codec
from services.runtime.ports import DamagedError, LogRecord
from services.runtime.projection import FlatFact, Mark
from services.runtime.reader import decode
from statemachines import facts
from statemachines.cluster import Cluster
from statemachines.entry import Entry

# Facts whose first field does not name their entity, and the field that does; none: the cell.
_OTHERWISE: Final[Mapping[type, str]] = MappingProxyType(
    {
        facts.TermOpened: "",
        facts.PolicyApplied: "",
        facts.RequestAccepted: "target",
        facts.RequestRefused: "target",
        facts.RunStarted: "run",
        facts.RunEnded: "run",
    }
)


class Parked(msgspec.Struct, frozen=True):
    """An input that the leader parked, and the place of the fact that says so."""

    mark: Mark
    fact: facts.InputParked


class Flattened(msgspec.Struct, frozen=True):
    """What one record of the log comes to; nothing when it is void."""

    facts: tuple[FlatFact, ...] = ()
    parked: tuple[Parked, ...] = ()


class Projection:
    """Follows the chain from `mark` on, or from the start of the log."""

    def __init__(self, cell: str, mark: Mark | None) -> None:
        self._chain = Cluster(cell)
        self._mark = mark
        self.position = 0 if mark is None else mark.offset
        self.voided = 0

    def take(self, record: LogRecord) -> Flattened:
        """The facts of the next record. Those of the mark's entry are given again, whole.

        Raises codec.UnknownFactError; DamagedError when the log is not the one that was projected before.
        """
        if self._mark is not None:
            self._go_on_from(self._mark, record)
        entry, unreadable = decode(record, self._chain)
        self.position = record.offset + 1
        if unreadable or self._chain.void_reason(entry):
            self.voided += 1
            return Flattened()
        self._chain.seal(entry)
        return flatten(entry)

    def _go_on_from(self, mark: Mark, record: LogRecord) -> None:
        """The entry of the mark was accepted before: put the chain to where it was just before it."""
        self._mark = None
        try:
            entry = codec.decode_entry(record.offset, record.value)
        except codec.CodecError:
            entry = codec.unreadable(record.offset)
        if (record.offset, entry.digest) != (mark.offset, mark.digest):
            raise DamagedError(
                f"the facts were projected from another log: its entry at offset {mark.offset} was another one. Empty "
                "the facts (on Kafka: delete the topic and run `tidemilld topics apply`), and they are made again."
            )
        self._chain.head, self._chain.term = entry.prev, entry.term


def flatten(entry: Entry) -> Flattened:
    """The facts of an accepted entry, in order."""
    flat, parked = [], []
    for index, recorded in enumerate(entry.facts):
        mark, fact = Mark(entry.offset, index, entry.digest), recorded.fact
        kind, key = type(fact).__name__, entity(fact, entry.cell)
        value = codec.fact_message(recorded)
        flat.append(FlatFact(mark, entry.term, entry.at_ms, kind, key, value))
        if isinstance(fact, facts.InputParked):
            parked.append(Parked(mark, fact))
    return Flattened(tuple(flat), tuple(parked))


def entity(fact: facts.Fact, cell: str) -> str:
    """What the fact is about, so that all of one job, node or queue stay in order under one key."""
    field = _OTHERWISE.get(type(fact), fact.__struct_fields__[0])
    if not field:
        return cell
    name = str(getattr(fact, field))
    if isinstance(fact, facts.RunStarted | facts.RunEnded):
        return name.partition(".")[0]
    return name or str(getattr(fact, fact.__struct_fields__[0]))
