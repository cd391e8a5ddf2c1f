"""What every Publisher keeps. A subclass gives `topics_of` as for inputs."""

import os
import threading

import pytest

from services.runtime.ports import RECORD_BYTES_MAX, Outgoing
from services.runtime.topics import partition_of
from tests.contracts.inputs_contract import (
    DEADLINE_S,
    REPORT_PARTITIONS,
    TopicsOf,
    read_all,
    report,
)


class PublisherContract:
    @pytest.fixture
    def topics_of(self) -> TopicsOf:
        raise NotImplementedError

    def test_nothing_to_publish_is_no_error(self, topics_of: TopicsOf) -> None:
        topics_of.publisher().publish([])

    def test_a_key_chooses_the_partition_by_the_one_rule(self, topics_of: TopicsOf) -> None:
        keys = [b"node-%d" % i for i in range(30)]
        topics_of.publisher().publish([Outgoing("reports", key, key) for key in keys])
        positions = {("reports", p): 0 for p in range(REPORT_PARTITIONS)}
        found = read_all(topics_of.inputs(), positions, len(keys))
        assert {record.key: record.partition for record in found} == {
            key: partition_of(key, REPORT_PARTITIONS) for key in keys
        }

    def test_the_order_given_is_kept_within_a_partition_across_topics(
        self, topics_of: TopicsOf
    ) -> None:
        records = [report(b"%d" % i, i % 2) for i in range(40)]
        topics_of.publisher().publish(records)
        found = read_all(topics_of.inputs(), {("reports", 0): 0, ("reports", 1): 0}, 40)
        for p in range(2):
            mine = [record.value for record in found if record.partition == p]
            assert mine == [b"%d" % i for i in range(p, 40, 2)]

    def test_the_largest_record_is_stored_among_others(self, topics_of: TopicsOf) -> None:
        values = [b"a", os.urandom(RECORD_BYTES_MAX), b"b"]
        topics_of.publisher().publish([report(value) for value in values])
        found = read_all(topics_of.inputs(), {("reports", 0): 0}, 3)
        assert [record.value for record in found] == values

    def test_what_was_published_is_there_after_everyone_closed(self, topics_of: TopicsOf) -> None:
        publisher = topics_of.publisher()
        publisher.publish([report(b"kept")])
        publisher.close()
        assert read_all(topics_of.inputs(), {("reports", 0): 0}, 1)[0].value == b"kept"

    @pytest.mark.parametrize("topic", ["beats", "signals", "progress", "verdicts"])
    def test_telemetry_and_verdicts_are_published_alike(
        self, topics_of: TopicsOf, topic: str
    ) -> None:
        topics_of.publisher().publish([Outgoing(topic, b"k", b"v", 0)])
        assert read_all(topics_of.inputs(), {(topic, 0): 0}, 1)[0].value == b"v"

    def test_many_who_publish_at_once_lose_nothing(self, topics_of: TopicsOf) -> None:
        publisher = topics_of.publisher()

        def publish(who: int) -> None:
            for i in range(20):
                publisher.publish([report(b"%d:%d" % (who, i))])

        threads = [threading.Thread(target=publish, args=(who,)) for who in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        stored = [record.value for record in read_all(topics_of.inputs(), {("reports", 0): 0}, 160)]
        for who in range(8):
            mine = [value for value in stored if value.startswith(b"%d:" % who)]
            assert mine == [b"%d:%d" % (who, i) for i in range(20)]
