"""Owns one consumer that is told where to read, by topic and partition: no group decides anything.

Each message is handed on as it is stored, in the order of its partition; a position that does not exist raises, and
after any error the next read begins again at the positions it is given, so nothing is ever skipped. One thread at a
time; another may close it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from services.runtime.adapters.kafka_client import (
    KafkaSettings,
    LastError,
    consumer_config,
    mapped,
    meaning,
)
from services.runtime.ports import PortError

Place = tuple[str, int]  # A topic by its full name, and a partition.

# How soon a close or an outage is noticed.
_SLICE_S: Final = 0.2
# One question to one broker; then it is looked up again who leads.
_ASK_S: Final = 2.0
_AGAIN_S: Final = 0.1
_RANGE_BATCH: Final = 1_000


class NoSuchPositionError(Exception):
    """The broker keeps nothing at this position: it is before `oldest` or after `end`."""

    def __init__(self, place: Place, position: int, oldest: int, end: int) -> None:
        super().__init__(f"{place[0]}/{place[1]}: {position} is not within {oldest}..{end}")
        self.place, self.position, self.oldest, self.end = place, position, oldest, end


class KafkaReader:
    """Reads partitions of one broker cluster. The first use connects.

    Questions have a client of their own: a broker answers one connection in turn, and behind a fetch that waits for
    records an answer would wait too.
    """

    def __init__(self, settings: KafkaSettings, *, committed_only: bool) -> None:
        self._settings = settings
        self._last = LastError()
        self._config = consumer_config(settings, self._last, committed_only=committed_only)
        self._using = threading.RLock()
        self._closed = False
        self._fetching: Consumer | None = None
        self._asking: Consumer | None = None
        self._next: dict[Place, int] = {}
        self._seen_to: dict[Place, int] = {}

    def read(
        self, positions: Mapping[Place, int], *, limit: int, timeout_s: float
    ) -> list[Message]:
        """What is there from the positions on, at most `limit`; nothing when nothing came in time or it is closed.

        Raises NoSuchPositionError, PortError.
        """
        deadline = time.monotonic() + timeout_s
        with self._using:
            if self._closed:
                return []
            self._go_to(positions)
            while True:
                left_s = deadline - time.monotonic()
                found = self._take(limit, min(max(left_s, 0.0), _SLICE_S))
                if found:
                    self._last.forget()
                else:
                    self._last.raise_if_lasting("reading")
                if found or left_s <= 0 or self._closed:
                    return found

    def saw_end(self, place: Place) -> bool:
        """Ask the broker where the partition ends now; whether everything before that was read.

        Records of aborted transactions and markers count as read; a closed reader has nothing more to wait for.
        """
        with self._using:
            if self._closed:
                return True
            oldest, end = self.bounds(place)
            position = self._next[place]
            if position > end:
                self._next = {}
                raise NoSuchPositionError(place, position, oldest, end)
            return max(position, self._seen_to.get(place, 0)) >= end

    def read_range(self, place: Place, first: int, end: int) -> Iterator[Message]:
        """Every record from `first` up to before `end`, which the partition had when it was asked for its bounds."""
        position = first
        while position < end and not self._closed:
            found = self.read(
                {place: position}, limit=_RANGE_BATCH, timeout_s=self._settings.answer_timeout_s
            )
            for message in found:
                offset = offset_of(message)
                if offset >= end:
                    return
                yield message
                position = offset + 1
            if not found:
                if self._seen_to.get(place, 0) < end:
                    raise self.silent(place[0])
                return

    def bounds(self, place: Place) -> tuple[int, int]:
        """(oldest kept, next) of a partition, from the broker that leads it."""
        deadline = time.monotonic() + self._settings.answer_timeout_s
        with self._using:
            while True:
                asking = self._asker()
                try:
                    oldest, end = asking.get_watermark_offsets(
                        TopicPartition(*place), timeout=_ASK_S
                    )
                except KafkaException as error:
                    if time.monotonic() > deadline or self._closed:
                        raise meaning(error.args[0], place[0]) from error
                    # Made to look who leads now: by itself the library goes on asking the one that is gone.
                    time.sleep(_AGAIN_S)
                    with mapped(place[0]):
                        asking.list_topics(place[0], timeout=self._settings.answer_timeout_s)
                else:
                    return oldest, end

    def partitions(self, topic: str) -> int:
        """How many the topic has now."""
        with self._using:
            asking = self._asker()
            with mapped(topic):
                found = asking.list_topics(topic, timeout=self._settings.answer_timeout_s)
        metadata = found.topics[topic]
        if metadata.error is not None:
            raise meaning(metadata.error, topic)
        return len(metadata.partitions)

    def show_positions(self, positions: Mapping[Place, int]) -> None:
        """Commit them to the group in passing, so that lag is on ordinary dashboards; nothing ever reads them back."""
        with self._using:
            if self._closed or not positions:
                return
            offsets = [TopicPartition(*place, offset) for place, offset in positions.items()]
            with mapped("the group's offsets"):
                self._asker().commit(offsets=offsets, asynchronous=True)

    def silent(self, topic: str) -> PortError:
        """The error of a wait that was in vain."""
        return PortError(
            f"{topic}: nothing came within {self._settings.answer_timeout_s:g} s. {self._last.explain()}"
        )

    def close(self) -> None:
        """Close the consumer; whoever waits is sent home first."""
        if self._closed:
            return
        self._closed = True
        with self._using:
            for client in (self._fetching, self._asking):
                if client is not None:
                    client.close()

    def _asker(self) -> Consumer:
        if self._closed:
            raise PortError("this reader is closed")
        if self._asking is None:
            self._asking = self._connect()
        self._asking.poll(0)  # Takes what it has to say of its connections; it has no records.
        return self._asking

    def _connect(self) -> Consumer:
        with mapped("the consumer"):
            return Consumer(self._config)

    def _go_to(self, positions: Mapping[Place, int]) -> None:
        if self._next == positions:
            return
        self._next, self._seen_to = {}, {}
        if (
            self._fetching is None
        ):  # A client that has idled before its first topic is slow to find who leads it.
            self._fetching = self._connect()
        with mapped("assigning partitions"):
            self._fetching.assign(
                [TopicPartition(*place, offset) for place, offset in positions.items()]
            )
        self._next = dict(positions)

    def _take(self, limit: int, wait_s: float) -> list[Message]:
        """The first that comes, with all that is there already; the library would wait until `limit` are there."""
        assert self._fetching is not None
        with mapped("reading"):
            messages = self._fetching.consume(1, wait_s)
            if messages and limit > 1:
                messages += self._fetching.consume(limit - 1, 0)
        found = []
        for message in messages:
            error = message.error()
            if error is not None:
                self._note(message, error)
                continue
            place, offset = place_of(message), offset_of(message)
            if offset >= self._next.get(place, offset + 1):
                found.append(message)
                self._next[place] = offset + 1
        return found

    def _note(self, message: Message, error: KafkaError) -> None:
        """The end of a partition is remembered; anything else is raised, and reading begins anew."""
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._seen_to[place_of(message)] = offset_of(message)
            return
        positions, self._next = self._next, {}
        topic = message.topic()
        if code == KafkaError._AUTO_OFFSET_RESET:
            place = place_of(message)
            oldest, end = self.bounds(place)
            if not oldest <= positions[place] <= end:
                raise NoSuchPositionError(place, positions[place], oldest, end)
        raise meaning(error, topic or "reading")


def place_of(message: Message) -> Place:
    """Where a message lies."""
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


def offset_of(message: Message) -> int:
    """The offset of a stored message."""
    offset = message.offset()
    assert offset is not None
    return offset
