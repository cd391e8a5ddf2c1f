"""Topics are read from the proto's options, whole."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from services.runtime import topics
from tidemill.v1 import topics_pb2


def test_every_declared_topic_is_known_by_its_suffix() -> None:
    assert len(topics.TOPICS) == len(topics_pb2.Topic.values()) - 1
    assert all(suffix == topic.suffix for suffix, topic in topics.TOPICS.items())


def test_options_are_read() -> None:
    assert topics.BEATS.lossy
    assert topics.BEATS.key == "explicit_partition"
    assert topics.REQUESTS.retention_ms == 14 * 24 * 3_600_000
    assert not topics.REQUESTS.lossy
    assert topics.LOG.partitions == 1
    assert topics.LOG.retention_ms == -1
    assert topics.LOG.name("c1") == "c1.log"
    assert topics.REPORTS.writers == ("gateway",)


@given(key=st.binary(), partitions=st.integers(1, 64))
def test_a_key_stays_on_its_partition(key: bytes, partitions: int) -> None:
    assert topics.partition_of(key, partitions) == zlib.crc32(key) % partitions < partitions
