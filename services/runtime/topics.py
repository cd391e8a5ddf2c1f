"""The topics of a cell, as protos/tidemill/v1/topics.proto declares them. The only place that knows their names.

It never creates or reads one; adapters do.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from tidemill.v1 import topics_pb2


class Topic(msgspec.Struct, frozen=True):
    """One declared topic. `retention_ms` -1 keeps records for ever; `lossy` topics may lose their newest in a crash."""

    suffix: str
    key: str
    partitions: int
    elastic: bool
    retention_ms: int
    compacted: bool
    lossy: bool
    writers: tuple[str, ...]
    readers: tuple[str, ...]

    def name(self, cell: str) -> str:
        """The topic's name on a broker."""
        return f"{cell}.{self.suffix}"


def _declared(number: int) -> Topic:
    options = (
        topics_pb2.Topic.DESCRIPTOR.values_by_number[number]
        .GetOptions()
        .Extensions[topics_pb2.topic]
    )
    key = topics_pb2.TopicKey.Name(options.key).removeprefix("TOPIC_KEY_").lower()
    return Topic(
        options.suffix, key, options.partitions, options.elastic, options.retention_ms, options.compacted,
        options.lossy, tuple(options.writers), tuple(options.readers),
    )  # fmt: skip


REQUESTS: Final = _declared(topics_pb2.TOPIC_REQUESTS)
REPORTS: Final = _declared(topics_pb2.TOPIC_REPORTS)
BEATS: Final = _declared(topics_pb2.TOPIC_BEATS)
SIGNALS: Final = _declared(topics_pb2.TOPIC_SIGNALS)
PROGRESS: Final = _declared(topics_pb2.TOPIC_PROGRESS)
VERDICTS: Final = _declared(topics_pb2.TOPIC_VERDICTS)
LOG: Final = _declared(topics_pb2.TOPIC_LOG)
BLOBS: Final = _declared(topics_pb2.TOPIC_BLOBS)
SNAPSHOTS: Final = _declared(topics_pb2.TOPIC_SNAPSHOTS)
FACTS: Final = _declared(topics_pb2.TOPIC_FACTS)
PARKED: Final = _declared(topics_pb2.TOPIC_PARKED)
OUTSIDE: Final = _declared(topics_pb2.TOPIC_OUTSIDE)

# By suffix, in the order declared.
TOPICS: Final[Mapping[str, Topic]] = MappingProxyType(
    {
        topic.suffix: topic
        for topic in map(_declared, topics_pb2.Topic.values())
        if topic.suffix  # The unspecified one has none.
    }
)
# What the leader decides on: positions of these travel in entries.
LEADER_INPUTS: Final = (REQUESTS, REPORTS, VERDICTS)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: CRC-32, as librdkafka's `consistent` partitioner has it; the same in every process."""
    return zlib.crc32(key) % partitions
