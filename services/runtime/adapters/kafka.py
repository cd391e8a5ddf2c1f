"""The storage ports of a distributed cell on Kafka topics: EventLog, Inputs, Publisher.

Positions come from the caller and go back to it; a consumer group only carries a number for lag dashboards. Offsets may
have holes. An adapter translates and decides nothing: what a record means, or that it means nothing, is the reader's
business.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Message

from services.runtime import topics
from services.runtime.adapters.kafka_client import KafkaSettings
from services.runtime.adapters.kafka_reader import (
    KafkaReader,
    NoSuchPositionError,
    Place,
    offset_of,
    place_of,
)
from services.runtime.adapters.kafka_writer import KafkaWriter, Keyed
from services.runtime.ports import (
    DamagedError,
    InputGapError,
    InputRecord,
    LogRecord,
    Outgoing,
)

# The broker says that there is more: it comes with the next fetch.
_ON_ITS_WAY_S: Final = 0.2
_AHEAD_RECORDS: Final = 4_096
_AHEAD_BYTES: Final = 16 << 20


class KafkaEventLog:
    """EventLog on one partition. Connects at the first use; a reader that never appends makes no producer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._place = (topics.LOG.name(settings.cell), 0)
        self._writer = KafkaWriter(settings)
        # Nobody writes the log in transactions; one that hangs, of whoever may, must not hide what follows it.
        self._reader = KafkaReader(settings, committed_only=False)

    def prepare_to_append(self) -> None:
        """Connect the producer now, so that a leader's first entry does not wait for it."""
        self._writer.prepare()

    def append(self, value: bytes) -> None:
        """Store one record on every replica in sync. A late duplicate of a retry is possible; the chain voids it."""
        self._writer.send([Keyed(*self._place, None, value)])

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        """Records from `offset` on. An empty answer asks the broker for the end, so it may take longer than given."""
        deadline = time.monotonic() + max(timeout_s, self._settings.answer_timeout_s)
        wait_s = timeout_s
        try:
            while True:
                found = self._reader.read({self._place: offset}, limit=limit, timeout_s=wait_s)
                if found or self._reader.saw_end(self._place):
                    break
                if time.monotonic() > deadline:
                    raise self._reader.silent(self._place[0])
                wait_s = _ON_ITS_WAY_S
        except NoSuchPositionError as error:
            raise _damaged(error) from error
        return [LogRecord(offset_of(message), message.value() or b"") for message in found]

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class KafkaInputs:
    """Inputs on topics of the cell. Each call deals out what came in turn, so a flood on one partition starves none."""

    def __init__(self, settings: KafkaSettings, *, show_every_s: float = 5.0) -> None:
        """`show_every_s`: how often positions are committed to the group, for lag dashboards."""
        self._cell = settings.cell
        self._show_every_s = show_every_s
        self._reader = KafkaReader(settings, committed_only=True)
        self._ahead: dict[Place, deque[Message]] = {}
        self._ahead_bytes = 0
        self._next: dict[Place, int] = {}
        self._turn = 0
        self._shown_at = time.monotonic()

    def partitions(self, topic: str) -> int:
        return self._reader.partitions(self._name(topic))

    def read(
        self, positions: Mapping[tuple[str, int], int], *, limit: int, timeout_s: float
    ) -> Sequence[InputRecord]:
        """Records at or after the positions."""
        if not positions:
            return []
        wanted = {
            (self._name(topic), partition): offset
            for (topic, partition), offset in positions.items()
        }
        if wanted != self._next:
            self._ahead, self._ahead_bytes = {place: deque() for place in wanted}, 0
            self._next = wanted
        self._read_ahead(timeout_s)
        self._show(wanted)
        return self._deal(limit)

    def end(self, topic: str, partition: int) -> int:
        return self._reader.bounds((self._name(topic), partition))[1]

    def close(self) -> None:
        self._reader.close()

    def _name(self, topic: str) -> str:
        return topics.TOPICS[topic].name(self._cell)

    def _suffix(self, name: str) -> str:
        return name.removeprefix(f"{self._cell}.")

    def _read_ahead(self, timeout_s: float) -> None:
        """Take what has come, and wait for it only when there is nothing to deal out."""
        held = sum(map(len, self._ahead.values()))
        if held >= _AHEAD_RECORDS or self._ahead_bytes >= _AHEAD_BYTES:
            return
        places = {
            place: offset_of(ahead[-1]) + 1 if ahead else self._next[place]
            for place, ahead in self._ahead.items()
        }
        try:
            found = self._reader.read(
                places, limit=_AHEAD_RECORDS - held, timeout_s=0 if held else timeout_s
            )
        except NoSuchPositionError as error:
            topic, partition = error.place
            raise InputGapError(
                self._suffix(topic), partition, error.position, error.oldest
            ) from error
        for message in found:
            self._ahead[place_of(message)].append(message)
            self._ahead_bytes += len(message)

    def _deal(self, limit: int) -> list[InputRecord]:
        """One of each partition in turn, beginning with another one at each call."""
        dealt: list[InputRecord] = []
        self._turn += 1
        places = list(self._ahead)
        start = self._turn % len(places)
        waiting = [place for place in places[start:] + places[:start] if self._ahead[place]]
        while waiting and len(dealt) < limit:
            for place in waiting[: limit - len(dealt)]:
                message = self._ahead[place].popleft()
                self._ahead_bytes -= len(message)
                self._next[place] = offset_of(message) + 1
                dealt.append(self._record(place, message))
            waiting = [place for place in waiting if self._ahead[place]]
        return dealt

    def _record(self, place: Place, message: Message) -> InputRecord:
        key, value = message.key() or b"", message.value() or b""
        return InputRecord(self._suffix(place[0]), place[1], offset_of(message), key, value)

    def _show(self, positions: Mapping[Place, int]) -> None:
        now = time.monotonic()
        if now - self._shown_at > self._show_every_s:
            self._shown_at = now
            self._reader.show_positions(positions)


class KafkaPublisher:
    """Publisher to topics of the cell; counts a topic's partitions once, at the first record that needs it."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._cell = settings.cell
        self._writer = KafkaWriter(settings)
        self._partitions: dict[str, int] = {}

    def publish(self, records: Sequence[Outgoing]) -> None:
        """Store the records, each on every replica in sync."""
        self._writer.send([self._keyed(record) for record in records])

    def close(self) -> None:
        self._writer.close()

    def _keyed(self, record: Outgoing) -> Keyed:
        name = topics.TOPICS[record.topic].name(self._cell)
        return Keyed(name, self._partition(name, record), record.key, record.value)

    def _partition(self, name: str, record: Outgoing) -> int:
        if record.partition is not None:
            return record.partition
        count = self._partitions.get(name)
        if count is None:
            count = self._partitions[name] = self._writer.partitions(name)
        return topics.partition_of(record.key, count)


def _damaged(error: NoSuchPositionError) -> DamagedError:
    """The log is for ever: a part of it that is not there is never passed over."""
    topic, partition = error.place
    if error.position < error.oldest:
        return DamagedError(
            f"{topic}/{partition}: entries {error.position}..{error.oldest - 1} are gone, so the state cannot be "
            "computed. Stop the cell, let `tidemilld topics check` show whether the log has a retention, and restore "
            "the log from a replica or an export (`tidemilld log import`)."
        )
    return DamagedError(
        f"{topic}/{partition}: it ends at {error.end}, but {error.position} entries were read from it before: the "
        "topic was made anew, or the brokers lost its tail. Stop the cell and restore the log from a replica or an "
        "export (`tidemilld log import`)."
    )
