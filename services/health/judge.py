"""What every host of the detector does: fold the log, read records, judge, publish. The host says when.

Nothing is kept to be retried, which could be stale by then: a verdict that could not be published is said again by the
detector while the log does not show it. Only `read_log` and `publish` wait for others; a host with an event loop calls
those from a thread, one at a time, and nothing else meanwhile but `observe`. It never knows how records come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from services.health import wire
from services.health.detector import Detector
from services.health.messages import NodeSlow, PathHeard, Signalled, Verdict
from services.health.proofs import Proofs
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
# A port's or device's event of longer ago is not judged again after a restart.
LOOK_BACK_MS: Final = 3_600_000


class Ports(msgspec.Struct, frozen=True):
    """What a health processor reads and writes."""

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


class Judge:
    """The state of one cell's health: its fold and its detector."""

    def __init__(
        self,
        cell: str,
        ports: Ports,
        rules: Rules,
        table: Table,
        watch: Watch,
        proofs: Proofs | None = None,
    ) -> None:
        """Fold the log. `proofs`: where others than gateways may write progress. Raises PortError, UnknownFactError."""
        self._log = ports.log
        self._publisher, self._clock = ports.publisher, ports.clock
        self._rules, self._table, self._proofs = rules, table, proofs
        self._watch = watch
        self.recovered: Recovered = recover(ports.log, ports.snapshots, cell, track=True)
        self.cluster = self.recovered.cluster
        self._reader = LogReader(ports.log, self.cluster)
        self.begin({})

    def begin(self, old_signals: Mapping[int, int]) -> None:
        """Forget all that was heard: everyone has a whole window to speak.

        `old_signals`: by partition, the offset before which signals are from before this moment.
        """
        self._old_signals = dict(old_signals)
        self._view = View(self.cluster)
        now_ms = self._clock.monotonic_ms()
        self.detector = Detector(self._rules, self._table, now_ms)
        for known in self._view.everything():
            self.detector.observe(known, now_ms)

    def observe(self, record: InputRecord) -> list[Verdict]:
        """Take one record; what can be said at once is, the rest at the next tick."""
        now_ms = self._clock.monotonic_ms()
        try:
            if not self._is_proven(record):
                return []
            said = wire.read(record, lambda at_ms: self._age_ms(record, at_ms))
        except wire.UnreadableError as error:
            self._watch.unreadable(record.topic, str(error))
            return []
        paths = isinstance(
            said[0], PathHeard
        )  # A batch of beats, which may be empty, says so first.
        self._watch.observed(record.topic, len(said) - paths)
        if record.topic == topics.SIGNALS.suffix:
            said = [
                each
                for each in said
                if not (isinstance(each, Signalled) and each.age_ms >= LOOK_BACK_MS)
            ]
        return self.detector.observe_all(said, now_ms)

    def read_log(self) -> None:
        """Fold what the log has now. Raises PortError, codec.UnknownFactError."""
        self._reader.read_to_end()

    def stand_by(self) -> None:
        """Fold what the log has now, and forget what that touched: `begin` looks at everything. Raises as `read_log`."""
        self.read_log()
        self.cluster.take_touched()

    def tick(self, *, all_read: bool) -> list[Verdict]:
        """Take what the fold says, and judge if all telemetry was observed: else silence would be our own."""
        now_ms = self._clock.monotonic_ms()
        verdicts: list[Verdict] = []
        for known in self._view.changes():
            verdicts += self.detector.observe(known, now_ms)
        if all_read:
            verdicts += self.detector.tick(now_ms)
        return verdicts

    def publish(self, verdicts: Sequence[Verdict]) -> None:
        """Store them, but for what is only told to people. Raises PortError."""
        if not verdicts:
            return
        at_ms, judge = self._clock.wall_ms(), self._rules.judge
        records = [
            wire.write(verdict, at_ms=at_ms, judge=judge)
            for verdict in verdicts
            if not isinstance(verdict, NodeSlow)
        ]
        if records:
            self._publisher.publish(records)
        self._watch.judged(verdicts)

    def _is_proven(self, record: InputRecord) -> bool:
        if self._proofs is None or record.topic != topics.PROGRESS.suffix:
            return True
        return self._proofs.admit(wire.progress(record), self._clock.wall_ms())

    def _age_ms(self, record: InputRecord, at_ms: int) -> int:
        """By the node's own clock, so it is asked only about what was there before us; else it happened now."""
        if record.offset >= self._old_signals.get(record.partition, 0):
            return 0
        return max(0, self._clock.wall_ms() - at_ms)
