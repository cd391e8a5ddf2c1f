"""The FactSink port on Kafka: `<cell>.facts` and `<cell>.parked`, one record a fact, its place in the headers.

What is stored is known from the last record of each topic: one partition, written in the log's order, so all up to its
last are there, and what comes again is left out. Headers are text, as kcat shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Message

from services.runtime import topics
from services.runtime.adapters.kafka_client import KafkaSettings
from services.runtime.adapters.kafka_reader import KafkaReader, Place
from services.runtime.adapters.kafka_writer import KafkaWriter, Keyed
from services.runtime.ports import DamagedError, PortError
from services.runtime.projection import FlatFact, Mark, ParkedInput

_LOOK_BACK_FIRST: Final = 4
_LOOK_BACK_GROWTH: Final = 16
# Acknowledged together; bounds the memory that a projection from the start takes.
_RECORDS_A_SEND: Final = 10_000


class KafkaFacts:
    """FactSink on the topics of a cell."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._facts = (topics.FACTS.name(settings.cell), 0)
        self._parked = (topics.PARKED.name(settings.cell), 0)
        self._writer = KafkaWriter(settings)
        # Nobody writes these topics in transactions.
        self._reader = KafkaReader(settings, committed_only=False)
        self._marks: dict[Place, Mark | None] = {}

    def resume(self) -> Mark | None:
        self._marks = {place: self._last(place) for place in (self._facts, self._parked)}
        return self._marks[self._facts]

    def write(self, facts: Sequence[FlatFact], parked: Sequence[ParkedInput]) -> None:
        if not self._marks:
            self.resume()
        try:
            self._send(self._parked, [(each.mark, _parked_record(each)) for each in parked])
            self._send(self._facts, [(fact.mark, _fact_record(fact)) for fact in facts])
        except PortError:
            self._marks = {}
            raise

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _send(self, place: Place, all_of: Sequence[tuple[Mark, _Record]]) -> None:
        for first in range(0, len(all_of), _RECORDS_A_SEND):
            last = self._marks[place]
            batch = [
                (mark, record)
                for mark, record in all_of[first : first + _RECORDS_A_SEND]
                if last is None or (mark.offset, mark.index) > (last.offset, last.index)
            ]
            if batch:
                records = [Keyed(*place, key, value, headers) for _, (key, value, headers) in batch]
                self._writer.send(records)
                self._marks[place] = batch[-1][0]

    def _last(self, place: Place) -> Mark | None:
        """The mark of the topic's last record, looking back from the end in growing steps."""
        oldest, end = self._reader.bounds(place)
        upper, step = end, _LOOK_BACK_FIRST
        while upper > oldest:
            lower = max(oldest, upper - step)
            messages = list(self._reader.read_range(place, lower, upper))
            if messages:
                return _mark(messages[-1])
            upper, step = lower, step * _LOOK_BACK_GROWTH
        return None


_Record = tuple[bytes, bytes, tuple[tuple[str, bytes], ...]]


def _fact_record(fact: FlatFact) -> _Record:
    more = {"term": fact.term, "at_ms": fact.at_ms, "type": fact.kind}
    return fact.key.encode(), fact.value, _headers(fact.mark, more)


def _parked_record(parked: ParkedInput) -> _Record:
    more = {
        "topic": parked.topic,
        "partition": parked.partition,
        "position": parked.position,
        "reason": parked.reason,
        "whole": "yes" if parked.whole else "no: the first 4 KiB",
    }
    return parked.key, parked.value, _headers(parked.mark, more)


def _headers(mark: Mark, more: Mapping[str, object]) -> tuple[tuple[str, bytes], ...]:
    place = {"offset": mark.offset, "index": mark.index, "digest": mark.digest.hex()}
    return tuple((name, str(value).encode()) for name, value in {**place, **more}.items())


def _mark(message: Message) -> Mark:
    headers = dict(message.headers() or ())
    try:
        return Mark(
            int(_text(headers["offset"])),
            int(_text(headers["index"])),
            bytes.fromhex(_text(headers["digest"])),
        )
    except (KeyError, ValueError) as error:
        raise DamagedError(
            f"{message.topic()}/{message.partition()}: its last record, at offset {message.offset()}, is not the "
            "projector's. Let nobody else write there, delete the topic, and run `tidemilld topics apply`: the facts "
            "are made again."
        ) from error


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
