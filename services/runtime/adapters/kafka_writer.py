"""Owns the idempotent producers of a process: one at a time, each served by a thread of its own until its end.

A record is acknowledged by every replica in sync, or the caller is told that its outcome is unknown. A wait that was in
vain ends the producer together with all it still holds, so that nothing is sent long after its caller gave up. It never
sends a record again by itself beyond what idempotence makes safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from services.runtime.adapters.kafka_client import (
    KafkaSettings,
    LastError,
    mapped,
    meaning,
    producer_config,
)
from services.runtime.ports import PortError

_SERVE_S: Final = 0.2
_ROOM_S: Final = 0.05
_DROPPED: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class Keyed(msgspec.Struct, frozen=True, gc=False):
    """A record for a partition of a topic by its full name; `value` None deletes the key of a compacted topic."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class KafkaWriter:
    """Stores records durably. Thread-safe; its first record makes the producer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._making = threading.Lock()
        self._session: _Session | None = None
        self._closed = False

    def prepare(self) -> None:
        """Connect now: the first record would else wait half a second for its producer."""
        self._producing()

    def send(self, records: Sequence[Keyed]) -> list[int]:
        """Store them, those of one partition in the order given; answers their offsets when all are durable.

        Raises PortError with the outcome of each unknown.
        """
        if not records:
            return []
        deadline = time.monotonic() + self._settings.answer_timeout_s
        session = self._producing()
        delivery = _Delivery(len(records))
        try:
            for number, record in enumerate(records):
                session.hand_over(record, delivery, number, deadline)
            offsets = delivery.wait(deadline - time.monotonic())
        except _LateError as late:
            self._discard(session)
            raise self._unknown(records[0].topic, session) from late
        except KafkaException as error:
            if session.last.fatal:
                self._discard(session)
            raise meaning(error.args[0], f"{records[0].topic}: outcome unknown") from error
        session.last.forget()
        return offsets

    def partitions(self, topic: str) -> int:
        """How many the topic has now."""
        session = self._producing()
        with mapped(topic):
            found = session.client.list_topics(topic, timeout=self._settings.answer_timeout_s)
        metadata = found.topics[topic]
        if metadata.error is not None:
            raise meaning(metadata.error, topic)
        return len(metadata.partitions)

    def close(self) -> None:
        """End the producer; what is not acknowledged by now stays unknown."""
        with self._making:
            self._closed = True
            session, self._session = self._session, None
        if session is not None:
            session.end()
            session.thread.join()

    def _producing(self) -> _Session:
        with self._making:
            if self._closed:
                raise PortError("this writer is closed")
            if self._session is None or self._session.ending:
                with mapped("the producer"):
                    self._session = _Session(self._settings)
            return self._session

    def _unknown(self, topic: str, session: _Session) -> PortError:
        """The error of records that nobody acknowledged."""
        if session.last.fatal and session.last.error is not None:
            return meaning(session.last.error, f"{topic}: outcome unknown")
        return PortError(
            f"{topic}: not acknowledged within {self._settings.answer_timeout_s:g} s, so whether it was stored is "
            f"unknown. {session.last.explain()}"
        )

    def _discard(self, session: _Session) -> None:
        with self._making:
            if self._session is session:
                self._session = None
        session.end()


class _LateError(Exception):
    """No acknowledgement came in time."""


class _Delivery:
    """What one caller waits for."""

    def __init__(self, count: int) -> None:
        self._offsets = [-1] * count
        self._missing = count
        self._error: KafkaError | None = None
        self._settled = threading.Event()

    def settle(self, number: int, error: KafkaError | None, message: Message) -> None:
        """One record is stored, or not. Called by whoever polls: one thread at a time for one session."""
        if error is None:
            self._offsets[number] = message.offset() or 0
        else:
            self._error = self._error or error
        self._missing -= 1
        if self._missing == 0:
            self._settled.set()

    def wait(self, timeout_s: float) -> list[int]:
        """The offsets in the order handed over; raises _LateError, or KafkaException with the first error."""
        if not self._settled.wait(max(0.0, timeout_s)):
            raise _LateError
        if self._error is None:
            return self._offsets
        if self._error.code() in _DROPPED:
            raise _LateError  # Together with another that had waited in vain.
        raise KafkaException(self._error)


class _Session:
    """One producer, and the thread that serves its acknowledgements until it ends."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.last = LastError()
        self.client = Producer(producer_config(settings, self.last))
        self.ending = False
        self.thread = threading.Thread(target=self._serve, name="kafka-writer", daemon=True)
        self.thread.start()

    def hand_over(self, record: Keyed, delivery: _Delivery, number: int, deadline: float) -> None:
        """Queue it; waits while the queue is full."""
        while True:
            if self.ending or time.monotonic() > deadline:
                raise _LateError
            try:
                self.client.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    on_delivery=lambda error, message: delivery.settle(number, error, message),
                    headers=list(record.headers) or None,
                )
            except BufferError:
                time.sleep(_ROOM_S)  # The thread that serves acknowledgements makes room.
            else:
                return

    def end(self) -> None:
        """Let the thread drop what is not acknowledged, and end."""
        self.ending = True

    def _serve(self) -> None:
        while not self.ending and not self.last.fatal:
            self._poll()
        self.ending = True
        while len(self.client):
            self.client.purge()
            self._poll()

    def _poll(self) -> None:
        """Serve callbacks. The library raises an error that is fatal to the producer here as well as telling it."""
        try:
            self.client.poll(_SERVE_S)
        except KafkaException as error:
            self.last(error.args[0])
