"""The sink of facts on a real broker keeps the contract, and its records are what other tools expect."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Message

from services.runtime.adapters.kafka_facts import KafkaFacts
from services.runtime.adapters.kafka_reader import KafkaReader
from services.runtime.ports import DamagedError
from services.runtime.projection import FactSink, FlatFact, Mark, ParkedInput
from tests.contracts.fact_sink_contract import FactSinkContract, FactsOf, fact
from tests.fixtures.kafka_cell import KafkaCell, kafka_cell

pytestmark = pytest.mark.kafka


@pytest.fixture
def cell(kafka_bootstrap: str) -> Iterator[KafkaCell]:
    with kafka_cell(kafka_bootstrap) as made:
        yield made


class KafkaFactsOf:
    """Reads the topics as another tool would: key, value, headers."""

    def __init__(self, cell: KafkaCell) -> None:
        self._cell = cell

    def sink(self) -> FactSink:
        return self._cell.open(KafkaFacts)

    def records(self, topic: str) -> list[tuple[Message, dict[str, str]]]:
        reader = self._cell.open(lambda told: KafkaReader(told, committed_only=True))
        place = (self._cell.name(topic), 0)
        first, end = reader.bounds(place)
        return [
            (
                message,
                {str(name): text(value) for name, value in dict(message.headers() or ()).items()},
            )
            for message in reader.read_range(place, first, end)
        ]

    def facts(self) -> list[FlatFact]:
        return [
            FlatFact(
                mark_of(headers),
                int(headers["term"]),
                int(headers["at_ms"]),
                headers["type"],
                (message.key() or b"").decode(),
                message.value() or b"",
            )
            for message, headers in self.records("facts")
        ]

    def parked(self) -> list[ParkedInput]:
        return [
            ParkedInput(
                mark_of(headers),
                headers["topic"],
                int(headers["partition"]),
                int(headers["position"]),
                headers["reason"],
                message.key() or b"",
                message.value() or b"",
                headers["whole"] == "yes",
            )
            for message, headers in self.records("parked")
        ]


def text(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def mark_of(headers: dict[str, str]) -> Mark:
    return Mark(int(headers["offset"]), int(headers["index"]), bytes.fromhex(headers["digest"]))


class TestKafkaFacts(FactSinkContract):
    @pytest.fixture
    def facts_of(self, cell: KafkaCell) -> FactsOf:
        return KafkaFactsOf(cell)


def test_a_foreign_record_at_the_end_is_damage_with_what_to_do(cell: KafkaCell) -> None:
    cell.open(KafkaFacts).write([fact(0)], [])
    cell.write("facts", b"k", b"not ours")
    with pytest.raises(DamagedError, match=r"not the projector's.*tidemilld topics apply"):
        cell.open(KafkaFacts).resume()
