"""Hosts the detector on the ports of a cell: telemetry and log in, verdicts out.

Positions are in memory only: beats and progress are judged from now on, signals are read again from an hour back, and
what the log says is folded from the start. A verdict that could not be published is said again by the detector while
the log does not show it, so nothing is kept to be retried, which could be stale by then. `turn` does one short piece of
work; weather leaves it with nothing half done, and calling it again is the retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from services.health import wire
from services.health.detector import Detector
from services.health.messages import PathHeard, Verdict
from services.health.rules import Rules
from services.health.table import Table
from services.health.view import View
from services.runtime import topics
from services.runtime.ports import (
    Clock,
    EventLog,
    InputGapError,
    InputRecord,
    Inputs,
    Publisher,
    Snapshots,
)
from services.runtime.reader import LogReader
from services.runtime.recovery import Recovered, recover

TOPICS: Final = (topics.BEATS, topics.SIGNALS, topics.PROGRESS)
RECORDS_PER_READ: Final = 2_000
# A port's or device's event of longer ago is not judged again after a restart.
LOOK_BACK_MS: Final = 3_600_000
_PARTITIONS_EVERY_MS: Final = 60_000


class Ports(msgspec.Struct, frozen=True):
    """What the processor reads and writes."""

    log: EventLog
    snapshots: Snapshots
    inputs: Inputs
    publisher: Publisher
    clock: Clock


class Watch(Protocol):
    """Looks on, for metrics and log lines; never decides."""

    def observed(self, topic: str, count: int) -> None:
        """So many things were said."""

    def unreadable(self, topic: str, why: str) -> None:
        """A record was dropped."""

    def skipped(self, gap: InputGapError) -> None:
        """Telemetry was gone before we read it."""

    def judged(self, verdicts: Sequence[Verdict]) -> None:
        """These were published."""


class Processor:
    """The health processor of a cell."""

    def __init__(self, cell: str, ports: Ports, rules: Rules, table: Table, watch: Watch) -> None:
        """Fold the log and find the ends of telemetry. Raises PortError, codec.UnknownFactError."""
        self._ports = ports
        self._watch = watch
        self._judge = rules.judge
        self.recovered: Recovered = recover(ports.log, ports.snapshots, cell, track=True)
        self.cluster = self.recovered.cluster
        self._reader = LogReader(ports.log, self.cluster)
        self._view = View(self.cluster)
        self._positions: dict[tuple[str, int], int] = {}
        self._old: dict[int, int] = {}  # Signals before these offsets are from before our start.
        self._partitions_ms = 0
        self._find_partitions(first=True)
        now_ms = ports.clock.monotonic_ms()
        self.detector = Detector(rules, table, now_ms)
        for known in self._view.everything():
            self.detector.observe(known, now_ms)

    def turn(self, timeout_s: float) -> None:
        """Read what there is, at most `timeout_s` long, and judge once all of it was read. Raises as above."""
        records = self._read(timeout_s)
        now_ms = self._ports.clock.monotonic_ms()
        verdicts: list[Verdict] = []
        for record in records:  # At once: their positions have moved.
            verdicts += self._observe(record, now_ms)
        self._reader.read_to_end()
        for known in self._view.changes():
            verdicts += self.detector.observe(known, now_ms)
        if len(records) < RECORDS_PER_READ:  # Else there may be more, and silence would be our own.
            verdicts += self.detector.tick(now_ms)
        self._publish(verdicts)
        if now_ms - self._partitions_ms > _PARTITIONS_EVERY_MS:
            self._find_partitions(first=False)

    def lag(self) -> int:
        """Records of telemetry not read yet. Raises PortError."""
        ends = (self._ports.inputs.end(*key) - at for key, at in self._positions.items())
        return sum(max(behind, 0) for behind in ends)

    def _read(self, timeout_s: float) -> Sequence[InputRecord]:
        try:
            records = self._ports.inputs.read(
                self._positions, limit=RECORDS_PER_READ, timeout_s=timeout_s
            )
        except InputGapError as gap:
            self._watch.skipped(gap)
            self._positions[gap.topic, gap.partition] = gap.oldest
            return ()
        for record in records:
            self._positions[record.topic, record.partition] = record.offset + 1
        return records

    def _observe(self, record: InputRecord, now_ms: int) -> list[Verdict]:
        try:
            said = wire.read(record, lambda at_ms: self._age_ms(record, at_ms))
        except wire.UnreadableError as error:
            self._watch.unreadable(record.topic, str(error))
            return []
        self._watch.observed(record.topic, sum(not isinstance(each, PathHeard) for each in said))
        verdicts: list[Verdict] = []
        for each in said:
            if getattr(each, "age_ms", 0) < LOOK_BACK_MS:
                verdicts += self.detector.observe(each, now_ms)
        return verdicts

    def _age_ms(self, record: InputRecord, at_ms: int) -> int:
        """By the node's own clock, so it is asked only about what was there before us; else it happened now."""
        if record.offset >= self._old.get(record.partition, 0):
            return 0
        return max(0, self._ports.clock.wall_ms() - at_ms)

    def _publish(self, verdicts: Sequence[Verdict]) -> None:
        if not verdicts:
            return
        at_ms = self._ports.clock.wall_ms()
        self._ports.publisher.publish(
            [wire.write(verdict, at_ms=at_ms, judge=self._judge) for verdict in verdicts]
        )
        self._watch.judged(verdicts)

    def _find_partitions(self, *, first: bool) -> None:
        """Topics may get more partitions; those that come later are read whole."""
        inputs = self._ports.inputs
        for topic in TOPICS:
            for partition in range(inputs.partitions(topic.suffix)):
                key = (topic.suffix, partition)
                if key in self._positions:
                    continue
                end = inputs.end(*key) if first else 0
                if topic is topics.SIGNALS:
                    self._old[partition] = end
                self._positions[key] = 0 if topic is topics.SIGNALS else end
        self._partitions_ms = self._ports.clock.monotonic_ms()
