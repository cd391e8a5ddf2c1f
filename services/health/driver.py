"""The loop that hosts the detector on the ports of a cell: telemetry and log in, verdicts out.

Positions are in memory only: beats and progress are judged from now on, signals are read again from an hour back, and
what the log says is folded from the start. `turn` does one short piece of work; weather leaves it with nothing half
done, and calling it again is the retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.health.detector import Detector
from services.health.judge import TOPICS, Judge, Ports, Watch
from services.health.messages import Verdict
from services.health.proofs import Proofs
from services.health.rules import Rules
from services.health.table import Table
from services.runtime import topics
from services.runtime.ports import InputGapError, InputRecord

RECORDS_PER_READ: Final = 2_000
_PARTITIONS_EVERY_MS: Final = 60_000


class Processor:
    """The health processor of a cell, reading by itself."""

    def __init__(
        self,
        cell: str,
        ports: Ports,
        rules: Rules,
        table: Table,
        watch: Watch,
        proofs: Proofs | None = None,
    ) -> None:
        """Fold the log and find the ends of telemetry. Raises PortError, codec.UnknownFactError."""
        self._inputs, self._clock, self._watch = ports.inputs, ports.clock, watch
        self._positions: dict[tuple[str, int], int] = {}
        self._partitions_ms = 0
        self.judge = Judge(cell, ports, rules, table, watch, proofs)
        self._find_partitions(first=True)
        self.judge.begin(
            {
                partition: self._inputs.end(topic, partition)
                for topic, partition in self._positions
                if topic == topics.SIGNALS.suffix
            }
        )

    @property
    def detector(self) -> Detector:
        """What judges."""
        return self.judge.detector

    def turn(self, timeout_s: float) -> None:
        """Read what there is, at most `timeout_s` long, and judge once all of it was read. Raises as above."""
        records = self._read(timeout_s)
        verdicts: list[Verdict] = []
        for record in records:  # At once: their positions have moved.
            verdicts += self.judge.observe(record)
        self.judge.read_log()
        # After a full read there may be more.
        verdicts += self.judge.tick(all_read=len(records) < RECORDS_PER_READ)
        self.judge.publish(verdicts)
        if self._clock.monotonic_ms() - self._partitions_ms > _PARTITIONS_EVERY_MS:
            self._find_partitions(first=False)

    def lag(self) -> int:
        """Records of telemetry not read yet. Raises PortError."""
        ends = (self._inputs.end(*key) - at for key, at in self._positions.items())
        return sum(max(behind, 0) for behind in ends)

    def _read(self, timeout_s: float) -> Sequence[InputRecord]:
        try:
            records = self._inputs.read(
                self._positions, limit=RECORDS_PER_READ, timeout_s=timeout_s
            )
        except InputGapError as gap:
            self._watch.skipped(gap)
            self._positions[gap.topic, gap.partition] = gap.oldest
            return ()
        for record in records:
            self._positions[record.topic, record.partition] = record.offset + 1
        return records

    def _find_partitions(self, *, first: bool) -> None:
        """Topics may get more partitions; those that come later are read whole."""
        for topic in TOPICS:
            for partition in range(self._inputs.partitions(topic.suffix)):
                key = (topic.suffix, partition)
                if key not in self._positions:
                    whole = topic is topics.SIGNALS or not first
                    self._positions[key] = 0 if whole else self._inputs.end(*key)
        self._partitions_ms = self._clock.monotonic_ms()
