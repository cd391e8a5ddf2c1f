"""What every Inputs keeps. A subclass gives `topics_of`, whose cell has 3 partitions of reports."""

import threading
from collections.abc import Mapping
from typing import Protocol

import pytest

from services.runtime.ports import InputGapError, InputRecord, Inputs, Outgoing, Publisher

DEADLINE_S = 30.0
REPORT_PARTITIONS = 3


class TopicsOf(Protocol):
    """One cell's topics, opened anew at each call; `drop` lets retention pass the records before an offset."""

    def inputs(self) -> Inputs: ...
    def publisher(self) -> Publisher: ...
    def drop(self, topic: str, partition: int, before: int) -> None: ...


def report(value: bytes, partition: int = 0) -> Outgoing:
    return Outgoing("reports", b"n", value, partition)


def request(value: bytes) -> Outgoing:
    return Outgoing("requests", b"j", value)


def read_all(
    inputs: Inputs, positions: Mapping[tuple[str, int], int], count: int
) -> list[InputRecord]:
    """The next `count` records; fails when they do not come."""
    at = dict(positions)
    found: list[InputRecord] = []
    while len(found) < count:
        records = inputs.read(at, limit=7, timeout_s=DEADLINE_S)
        assert 0 < len(records) <= 7, f"only {len(found)} of {count} records came"
        for record in records:
            at[(record.topic, record.partition)] = record.offset + 1
        found += records
    return found


class InputsContract:
    @pytest.fixture
    def topics_of(self) -> TopicsOf:
        raise NotImplementedError

    def test_nothing_published_answers_with_nothing_after_the_timeout(
        self, topics_of: TopicsOf
    ) -> None:
        inputs = topics_of.inputs()
        assert list(inputs.read({("requests", 0): 0}, limit=5, timeout_s=0)) == []
        assert list(inputs.read({("requests", 0): 0}, limit=5, timeout_s=0.05)) == []
        assert inputs.end("requests", 0) == 0

    def test_partitions_are_as_many_as_were_made(self, topics_of: TopicsOf) -> None:
        inputs = topics_of.inputs()
        assert inputs.partitions("requests") == 1
        assert inputs.partitions("reports") == REPORT_PARTITIONS

    def test_a_record_comes_back_whole(self, topics_of: TopicsOf) -> None:
        topics_of.publisher().publish([Outgoing("requests", b"\0key\xff", b"\0value\xff")])
        (record,) = read_all(topics_of.inputs(), {("requests", 0): 0}, 1)
        assert record == InputRecord("requests", 0, record.offset, b"\0key\xff", b"\0value\xff")

    def test_each_partition_is_read_in_order_without_gaps_or_repeats(
        self, topics_of: TopicsOf
    ) -> None:
        publisher = topics_of.publisher()
        for i in range(20):
            publisher.publish([report(b"%d:%d" % (p, i), p) for p in range(REPORT_PARTITIONS)])
        positions = {("reports", p): 0 for p in range(REPORT_PARTITIONS)}
        found = read_all(topics_of.inputs(), positions, 20 * REPORT_PARTITIONS)
        for p in range(REPORT_PARTITIONS):
            mine = [record.value for record in found if record.partition == p]
            assert mine == [b"%d:%d" % (p, i) for i in range(20)]

    def test_reading_begins_at_the_position(self, topics_of: TopicsOf) -> None:
        topics_of.publisher().publish([request(b"%d" % i) for i in range(5)])
        inputs = topics_of.inputs()
        third = read_all(inputs, {("requests", 0): 0}, 5)[2]
        found = read_all(inputs, {("requests", 0): third.offset}, 3)
        assert [record.value for record in found] == [b"2", b"3", b"4"]

    def test_the_end_is_where_the_next_record_will_be(self, topics_of: TopicsOf) -> None:
        publisher, inputs = topics_of.publisher(), topics_of.inputs()
        publisher.publish([request(b"a"), request(b"b")])
        end = inputs.end("requests", 0)
        assert list(inputs.read({("requests", 0): end}, limit=5, timeout_s=0.05)) == []
        publisher.publish([request(b"c")])
        (record,) = read_all(inputs, {("requests", 0): end}, 1)
        assert (record.offset, record.value) == (end, b"c")

    def test_a_waiting_reader_gets_what_is_published(self, topics_of: TopicsOf) -> None:
        inputs, publisher = topics_of.inputs(), topics_of.publisher()
        found: list[InputRecord] = []
        positions = {("requests", 0): 0, ("reports", 2): 0}
        thread = threading.Thread(target=lambda: found.extend(read_all(inputs, positions, 1)))
        thread.start()
        publisher.publish([report(b"x", 2)])
        thread.join(DEADLINE_S)
        assert [record.value for record in found] == [b"x"]

    def test_a_flood_on_one_partition_does_not_starve_another(self, topics_of: TopicsOf) -> None:
        topics_of.publisher().publish([*(request(b"flood") for _ in range(200)), report(b"rare")])
        inputs = topics_of.inputs()
        positions = {("requests", 0): 0, ("reports", 0): 0}
        for _ in range(10):
            for record in inputs.read(positions, limit=10, timeout_s=DEADLINE_S):
                if record.value == b"rare":
                    return
                positions[(record.topic, record.partition)] = record.offset + 1
        pytest.fail("100 records of the flood came before the other partition's only one")

    def test_a_position_below_what_is_kept_is_a_gap_and_nothing_is_skipped(
        self, topics_of: TopicsOf
    ) -> None:
        publisher, inputs = topics_of.publisher(), topics_of.inputs()
        publisher.publish([request(b"%d" % i) for i in range(10)])
        topics_of.drop("requests", 0, 4)
        with pytest.raises(InputGapError, match="tidemilld gap accept requests 0 4") as caught:
            inputs.read({("requests", 0): 2}, limit=5, timeout_s=DEADLINE_S)
        assert (caught.value.position, caught.value.oldest) == (2, 4)
        assert read_all(inputs, {("requests", 0): 4}, 1)[0].value == b"4"

    def test_an_offset_is_never_given_twice_even_after_all_was_dropped(
        self, topics_of: TopicsOf
    ) -> None:
        publisher, inputs = topics_of.publisher(), topics_of.inputs()
        publisher.publish([request(b"old") for _ in range(3)])
        end = inputs.end("requests", 0)
        topics_of.drop("requests", 0, end)
        publisher.publish([request(b"new")])
        (record,) = read_all(inputs, {("requests", 0): end}, 1)
        assert (record.offset, record.value) == (end, b"new")
