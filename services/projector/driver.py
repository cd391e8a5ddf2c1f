"""The projector's driver: reads the log, flattens it, stores what comes out, and begins again where the sink stands.

Dying anywhere repeats nothing: what is stored is known from the sink's own last records, and a copy of a parked input is
stored before the fact that says so. It never writes to the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from services.projector.core import Parked, Projection
from services.runtime.ports import EventLog, InputGapError, InputRecord, Inputs
from services.runtime.projection import FactSink, FlatFact, ParkedInput

# Records of the log a turn: one write of the sink.
RECORDS_PER_TURN: Final = 256


class Ports(msgspec.Struct, frozen=True):
    """What the projector reads and writes."""

    log: EventLog
    inputs: Inputs
    sink: FactSink


class Watch(Protocol):
    """Who is told how it goes."""

    def projected(
        self, facts: Sequence[FlatFact], parked: Sequence[ParkedInput], projection: Projection
    ) -> None:
        """These are stored now."""

    def at_end(self, projection: Projection) -> None:
        """All that the log holds is stored."""


class Projector:
    """Projects one cell's log. After a PortError of `turn`, the next turn begins where the sink stands."""

    def __init__(self, cell: str, ports: Ports, watch: Watch) -> None:
        self._cell = cell
        self._ports = ports
        self._watch = watch
        self._projection: Projection | None = None

    def turn(self, timeout_s: float) -> None:
        """Project what has come, waiting up to `timeout_s` for something. Raises PortError."""
        projection = self._projection or Projection(self._cell, self._ports.sink.resume())
        self._projection = None
        records = self._ports.log.read(
            projection.position, limit=RECORDS_PER_TURN, timeout_s=timeout_s
        )
        flattened = [projection.take(record) for record in records]
        facts = [fact for each in flattened for fact in each.facts]
        parked = [self._copy(each) for all_of in flattened for each in all_of.parked]
        if facts:
            self._ports.sink.write(facts, parked)
        self._projection = projection
        self._watch.projected(facts, parked, projection)
        if not records:
            self._watch.at_end(projection)

    def _copy(self, parked: Parked) -> ParkedInput:
        """The whole input while its topic still has it, else what the fact kept."""
        fact = parked.fact
        place = (fact.topic, fact.partition)
        found: Sequence[InputRecord] = ()
        # A log from elsewhere names inputs that were never here.
        if fact.offset < self._ports.inputs.end(*place):
            with contextlib.suppress(InputGapError):
                found = self._ports.inputs.read({place: fact.offset}, limit=1, timeout_s=1.0)
        key, value, whole = b"", fact.record, False
        if found and found[0].offset == fact.offset:
            key, value, whole = found[0].key, found[0].value, True
        return ParkedInput(
            parked.mark, fact.topic, fact.partition, fact.offset, fact.reason, key, value, whole
        )
