"""What the topics of a cell should be on a broker, what they are, and the changes between the two, as values.

Pure: it asks no broker and changes nothing. It never plans a change that could lose stored records: what differs in
such a way is refused, with the command by which an operator who means it can do it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from services.runtime import topics
from services.runtime.topics import Topic

REPLICAS_DEFAULT: Final = 3
# An entry, a piece of a snapshot or a blob stays below a million bytes; the rest is for headers.
MESSAGE_BYTES: Final = 1_048_588
_SEGMENTS_A_RETENTION: Final = 8
_SEGMENT_MS_MIN: Final = 600_000
_SEGMENT_MS_MAX: Final = 7 * 86_400_000
_COMPACT_WITHIN_MS: Final = 86_400_000
_COMPACTED_SEGMENT_BYTES: Final = 128 << 20
_AT_LEAST: Final = frozenset({"retention.ms", "min.insync.replicas", "max.message.bytes"})
_NEVER: Final = frozenset({"cleanup.policy"})


class WantedTopic(msgspec.Struct, frozen=True):
    """One topic as declared, for a broker cluster of a certain size."""

    name: str
    partitions: int
    more_partitions_are_fine: bool
    replicas: int
    config: Mapping[str, str]


class FoundTopic(msgspec.Struct, frozen=True):
    """One topic as the brokers describe it."""

    partitions: int
    replicas: int
    config: Mapping[str, str]


class TopicAdmin(Protocol):
    """Topics of a broker cluster; raises PortError."""

    def brokers(self) -> int:
        """How many can be reached."""

    def find(self, names: Sequence[str]) -> Mapping[str, FoundTopic]:
        """Those that exist."""

    def create(self, topic: WantedTopic) -> None:
        """Make it; one that is there already is no error."""

    def raise_partitions(self, name: str, count: int) -> None:
        """Add partitions until there are `count`."""

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Set these settings."""


class Kind(StrEnum):
    """What becomes of a difference."""

    CREATE = "+"
    CHANGE = "~"
    REFUSED = "!"
    SAME = "="


class Step(msgspec.Struct, frozen=True):
    """One line of the difference. `config` and `partitions` are what a CHANGE sets."""

    kind: Kind
    topic: str
    text: str
    config: Mapping[str, str] = msgspec.field(default_factory=dict)
    partitions: int = 0


def wanted_topics(
    cell: str, *, brokers: int, replicas: int, partitions: Mapping[str, int]
) -> list[WantedTopic]:
    """The topics of the cell, in the order declared; `partitions` raises the number of elastic ones, by suffix.

    Raises ValueError for a number that a topic cannot have, and for fewer brokers than replicas: a topic made while
    some brokers are down would stay with too few copies.
    """
    if brokers < replicas:
        raise ValueError(
            f"replicas: {replicas} copies need as many brokers, and {brokers} can be reached. Start the others, or "
            f"declare a smaller cell with --replicas {brokers}"
        )
    for suffix, count in partitions.items():
        declared = topics.TOPICS.get(suffix)
        if declared is None or not declared.elastic or count < declared.partitions:
            elastic = ", ".join(topic.suffix for topic in topics.TOPICS.values() if topic.elastic)
            raise ValueError(f"partitions: {suffix}={count}: raise those of one of {elastic}")
    return [
        WantedTopic(
            topic.name(cell),
            partitions.get(topic.suffix, topic.partitions),
            topic.elastic,
            replicas,
            _config(topic, replicas),
        )
        for topic in topics.TOPICS.values()
    ]


def _config(topic: Topic, replicas: int) -> dict[str, str]:
    """Settings of a topic. A write of telemetry is not refused for want of a second replica."""
    config = {
        "cleanup.policy": "compact" if topic.compacted else "delete",
        "retention.ms": str(topic.retention_ms),
        "min.insync.replicas": "1" if topic.lossy or replicas < REPLICAS_DEFAULT else "2",
        "max.message.bytes": str(MESSAGE_BYTES),
        # Retention goes by the brokers' clocks; a writer's wrong clock neither keeps nor deletes anything.
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
    }
    if topic.compacted:
        config |= {
            "segment.bytes": str(_COMPACTED_SEGMENT_BYTES),
            "segment.ms": str(_COMPACT_WITHIN_MS),
            # What was deleted is off the disks within about two days.
            "max.compaction.lag.ms": str(_COMPACT_WITHIN_MS),
        }
    elif topic.retention_ms > 0:
        # Only a closed segment is dropped, so segments are closed several times within a retention.
        segment_ms = topic.retention_ms // _SEGMENTS_A_RETENTION
        config["segment.ms"] = str(min(_SEGMENT_MS_MAX, max(_SEGMENT_MS_MIN, segment_ms)))
    return config


def differences(wanted: Sequence[WantedTopic], found: Mapping[str, FoundTopic]) -> Iterator[Step]:
    """What to do, topic by topic; one SAME for each that is as declared."""
    for topic in wanted:
        now = found.get(topic.name)
        if now is None:
            yield Step(Kind.CREATE, topic.name, _describe(topic))
            continue
        steps = [
            *_partition_steps(topic, now),
            *_replica_steps(topic, now),
            *_config_steps(topic, now),
        ]
        yield from steps or [Step(Kind.SAME, topic.name, "as declared")]


def _describe(topic: WantedTopic) -> str:
    return f"{topic.partitions} partition(s), {topic.replicas} replica(s), {_kept(topic.config)}"


def _kept(config: Mapping[str, str]) -> str:
    retention_ms = int(config["retention.ms"])
    if config["cleanup.policy"] == "compact":
        return "newest of each key"
    if retention_ms < 0:
        return "kept for ever"
    days, hours = retention_ms // 86_400_000, retention_ms // 3_600_000
    return f"kept {days} d" if days else f"kept {hours} h"


def _partition_steps(topic: WantedTopic, now: FoundTopic) -> Iterator[Step]:
    change = f"partitions {now.partitions} -> {topic.partitions}"
    if now.partitions < topic.partitions:
        yield Step(Kind.CHANGE, topic.name, change, partitions=topic.partitions)
    elif now.partitions > topic.partitions and not topic.more_partitions_are_fine:
        yield Step(
            Kind.REFUSED,
            topic.name,
            f"{change}: Kafka cannot take partitions away. Stop the cell and make the topic anew: export what it "
            f"holds, delete it with kafka-topics.sh --delete --topic {topic.name}, then `tidemilld topics apply`",
        )


def _replica_steps(topic: WantedTopic, now: FoundTopic) -> Iterator[Step]:
    if now.replicas < topic.replicas:
        yield Step(
            Kind.REFUSED,
            topic.name,
            f"replicas {now.replicas} -> {topic.replicas}: moving data is the operator's to schedule, with "
            "kafka-reassign-partitions.sh; or declare fewer with --replicas",
        )


def _config_steps(topic: WantedTopic, now: FoundTopic) -> Iterator[Step]:
    for name, value in topic.config.items():
        have = now.config.get(name, "")
        if have == value or (name in _AT_LEAST and _generous(have, value)):
            continue
        change = f"{name} {have or '(unset)'} -> {value}"
        if name in _NEVER:
            yield Step(
                Kind.REFUSED,
                topic.name,
                f"{change}: this could delete records. If that is meant: kafka-configs.sh --alter --entity-type topics "
                f"--entity-name {topic.name} --add-config {name}={value}",
            )
        else:
            yield Step(Kind.CHANGE, topic.name, change, config={name: value})


def _generous(have: str, wanted: str) -> bool:
    """Whether the broker already keeps or takes more than declared; -1 is for ever."""
    if not have.lstrip("-").isdigit():
        return False
    return int(have) == -1 or (int(wanted) != -1 and int(have) >= int(wanted))
