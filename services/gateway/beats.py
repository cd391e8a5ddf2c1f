"""Beats on their way: collected by partition for at most BATCH_MS, so that one record carries all of them.

Never acknowledges: it says which beats are in their topic, and the sessions decide what that is worth. A partition
without beats gets an empty batch now and then: whoever judges silence can tell silent nodes from a gateway that is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from services.gateway.effects import Effects, Now
from services.gateway.record import too_large
from services.runtime import topics
from services.runtime.ports import RECORD_BYTES_MAX, Outgoing, PortError
from tidemill.v1 import telemetry_pb2

BATCH_MS: Final = 100
# A full batch does not wait; 2,000 beats are about 100 KB, and a record holds them whatever their nodes are called.
BATCH_BEATS: Final = 2_000
BEAT_BYTES_MAX: Final = RECORD_BYTES_MAX // BATCH_BEATS - 20
# A partition to which nothing was written since the last look gets an empty batch: two looks within the 2 s promised.
PULSE_MS: Final = 1_000
# Batches of one partition that may be on their way; beats that come on top are dropped: they would be old when they arrive.
BATCHES_MAX: Final = 40

Published: TypeAlias = Callable[[Sequence[telemetry_pb2.Beat], Now], None]


class Beats:
    """Beats not yet published; `published` is told those that are."""

    def __init__(
        self, effects: Effects, *, gateway: str, partitions: int, published: Published
    ) -> None:
        self._effects = effects
        self._gateway = gateway
        self._partitions = partitions
        self._published = published
        self._waiting: dict[int, list[telemetry_pb2.Beat]] = {}
        self._timed = False
        self._on_the_way: Counter[int] = Counter()
        self._written_lately: set[int] = set()
        effects.at(0, self._pulse)

    def take(self, beat: telemetry_pb2.Beat, now: Now) -> None:
        """A node's heart beat; raises Refusal for one that is none: its fields are few and small."""
        size = beat.ByteSize()
        if size > BEAT_BYTES_MAX:
            raise too_large(beat, size, BEAT_BYTES_MAX)
        partition = 0
        if self._partitions > 1:
            partition = topics.partition_of(beat.node.encode(), self._partitions)
        waiting = self._waiting.setdefault(partition, [])
        waiting.append(beat)
        if not self._timed:
            self._timed = True
            self._effects.at(now.mono_ms + BATCH_MS, self._due)
        if len(waiting) >= BATCH_BEATS:
            self.flush(now)

    def _due(self, now: Now) -> None:
        self._timed = False
        self.flush(now)

    def flush(self, now: Now) -> None:
        """Publish all of it, one record a partition."""
        for partition, beats in sorted(self._waiting.items()):
            self._publish(partition, beats, now)
        self._waiting = {}

    def _pulse(self, now: Now) -> None:
        for partition in range(self._partitions):
            if partition not in self._written_lately:
                self._publish(partition, [], now)
        self._written_lately.clear()
        self._effects.at(now.mono_ms + PULSE_MS, self._pulse)

    def _publish(self, partition: int, beats: list[telemetry_pb2.Beat], now: Now) -> None:
        if self._on_the_way[partition] >= BATCHES_MAX:
            return
        self._on_the_way[partition] += 1
        batch = telemetry_pb2.BeatBatch(gateway=self._gateway, at_ms=now.wall_ms, beats=beats)
        record = Outgoing(topics.BEATS.suffix, b"", batch.SerializeToString(), partition)
        self._written_lately.add(partition)
        self._effects.publish([record], partial(self._written, partition, beats))

    def _written(
        self,
        partition: int,
        beats: Sequence[telemetry_pb2.Beat],
        error: PortError | None,
        now: Now,
    ) -> None:
        self._on_the_way[partition] -= 1
        if error is None:  # A beat that was not stored gets no answer; the agent's next one may.
            self._published(beats, now)
