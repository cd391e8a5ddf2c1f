"""What is declared of topics, and what becomes of each kind of difference."""

import re

import pytest
from msgspec.structs import replace

from services.runtime import topics
from services.runtime.topic_plan import FoundTopic, Kind, WantedTopic, differences, wanted_topics
from services.runtime.topic_rights import Operation, Resource, Right, rights, roles

WANTED = wanted_topics("c", brokers=3, replicas=3, partitions={"requests": 4})
BY_NAME = {topic.name: topic for topic in WANTED}


def as_found(topic: WantedTopic) -> FoundTopic:
    return FoundTopic(topic.partitions, topic.replicas, dict(topic.config))


def steps(name: str, **changes: object) -> list[tuple[Kind, str]]:
    """The differences of one topic, found as declared but for the changes."""
    found = replace(as_found(BY_NAME[name]), **changes)
    return [(step.kind, step.text) for step in differences([BY_NAME[name]], {name: found})]


def config(name: str, **changes: str) -> dict[str, str]:
    dotted = {key.replace("_", "."): value for key, value in changes.items()}
    return {**BY_NAME[name].config, **dotted}


def test_every_declared_topic_is_wanted() -> None:
    assert [topic.name for topic in WANTED] == [f"c.{suffix}" for suffix in topics.TOPICS]
    assert BY_NAME["c.requests"].partitions == 4


def test_the_log_is_one_partition_kept_for_ever_on_two_disks_at_least() -> None:
    log = BY_NAME["c.log"]
    assert (log.partitions, log.replicas) == (1, 3)
    assert log.config["cleanup.policy"] == "delete"
    assert log.config["retention.ms"] == "-1"
    assert log.config["min.insync.replicas"] == "2"
    assert log.config["unclean.leader.election.enable"] == "false"


def test_telemetry_is_written_though_a_replica_is_missing() -> None:
    assert BY_NAME["c.beats"].config["min.insync.replicas"] == "1"


def test_retention_is_met_by_closing_segments_within_it() -> None:
    for topic in WANTED:
        retention_ms = int(topic.config["retention.ms"])
        if retention_ms > 0:
            assert 600_000 <= int(topic.config["segment.ms"]) <= retention_ms / 4


def test_as_declared_is_the_same() -> None:
    found = {topic.name: as_found(topic) for topic in WANTED}
    assert {step.kind for step in differences(WANTED, found)} == {Kind.SAME}


def test_a_missing_topic_is_made() -> None:
    (step, *_) = differences(WANTED, {})
    assert (step.kind, step.topic) == (Kind.CREATE, "c.requests")
    assert step.text == "4 partition(s), 3 replica(s), kept 14 d"


def test_partitions_are_added_and_never_taken_away() -> None:
    assert steps("c.requests", partitions=1) == [(Kind.CHANGE, "partitions 1 -> 4")]
    assert steps("c.requests", partitions=9) == [(Kind.SAME, "as declared")]
    ((kind, text),) = steps("c.log", partitions=2)
    assert kind is Kind.REFUSED
    assert "cannot take partitions away" in text


def test_missing_replicas_are_for_the_operator_to_move() -> None:
    ((kind, text),) = steps("c.log", replicas=1)
    assert kind is Kind.REFUSED
    assert "kafka-reassign-partitions.sh" in text
    assert steps("c.log", replicas=5) == [(Kind.SAME, "as declared")]


def test_a_longer_retention_stays_and_a_shorter_one_is_raised() -> None:
    assert steps("c.requests", config=config("c.requests", retention_ms="-1")) == [
        (Kind.SAME, "as declared")
    ]
    assert steps("c.log", config=config("c.log", retention_ms="604800000")) == [
        (Kind.CHANGE, "retention.ms 604800000 -> -1")
    ]


@pytest.mark.parametrize("name", ["c.log", "c.blobs"])
def test_another_cleanup_policy_is_refused_with_the_command(name: str) -> None:
    ((kind, text),) = steps(name, config=config(name, cleanup_policy="compact,delete"))
    assert kind is Kind.REFUSED
    assert "could delete records" in text
    assert f"kafka-configs.sh --alter --entity-type topics --entity-name {name}" in text


def test_weaker_settings_are_raised_and_stronger_ones_stay() -> None:
    weak = config("c.log", min_insync_replicas="1", max_message_bytes="1000")
    assert [kind for kind, _ in steps("c.log", config=weak)] == [Kind.CHANGE, Kind.CHANGE]
    strong = config("c.log", min_insync_replicas="3", max_message_bytes="9000000")
    assert steps("c.log", config=strong) == [(Kind.SAME, "as declared")]
    unclean = config("c.log", unclean_leader_election_enable="true")
    assert steps("c.log", config=unclean) == [
        (Kind.CHANGE, "unclean.leader.election.enable true -> false")
    ]


@pytest.mark.parametrize(
    ("partitions", "replicas", "said"),
    [
        ({"log": 2}, 1, "raise those of one of requests"),
        ({"request": 2}, 1, "raise those of one of requests"),
        ({"requests": 0}, 1, "raise those of one of requests"),
        ({}, 3, "3 copies need as many brokers, and 2 can be reached.*--replicas 2"),
    ],
)
def test_what_cannot_be_declared_is_said(
    partitions: dict[str, int], replicas: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        wanted_topics("c", brokers=2, replicas=replicas, partitions=partitions)


# --- rights


def of(principal: str, *, outside: dict[str, str] | None = None) -> list[Right]:
    granted = rights("c", principals={}, outside_writers=outside or {})
    return [right for right in granted if right.principal == principal]


def may(principal: str, operation: Operation) -> set[str]:
    return {right.name for right in of(principal) if right.operation is operation}


def test_only_the_scheduler_writes_the_log() -> None:
    writers = {
        right.principal
        for right in rights("c", principals={}, outside_writers={})
        if right.operation is Operation.WRITE and "c.log".startswith(right.name)
    }
    assert writers == {"User:tidemill-scheduler"}


def test_a_role_reads_what_it_is_declared_to_read_and_its_own_group() -> None:
    assert may("User:tidemill-scheduler", Operation.READ) == {
        "c.requests", "c.reports", "c.verdicts", "c.log", "c.snapshots", "c.scheduler",
    }  # fmt: skip
    assert may("User:tidemill-projector", Operation.WRITE) == {"c.facts", "c.parked"}


def test_health_keeps_topics_of_its_own_under_its_prefix() -> None:
    own = [right for right in of("User:tidemill-health") if right.prefixed]
    assert {right.name for right in own} == {"c.health-"}
    assert {right.operation for right in own} == set(Operation)


def test_a_program_outside_may_write_what_the_operator_allows_and_read_nothing() -> None:
    assert of("User:trainers", outside={"progress": "User:trainers"}) == [
        Right("User:trainers", Resource.TOPIC, "c.progress", Operation.DESCRIBE),
        Right("User:trainers", Resource.TOPIC, "c.progress", Operation.WRITE),
    ]


def test_principals_may_have_other_names() -> None:
    named = rights("c", principals={"gateway": "User:CN=gw"}, outside_writers={})
    assert not any(right.principal == "User:tidemill-gateway" for right in named)
    assert any(right.principal == "User:CN=gw" for right in named)


@pytest.mark.parametrize(
    ("principals", "outside", "said"),
    [
        ({"gatway": "User:x"}, {}, "no role 'gatway'; there are audit, console"),
        ({}, {"log": "User:x"}, "no program outside may write 'log'"),
        ({}, {"nothing": "User:x"}, "no program outside may write 'nothing'"),
    ],
)
def test_rights_that_make_no_sense_are_refused(
    principals: dict[str, str], outside: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        rights("c", principals=principals, outside_writers=outside)


def test_every_role_is_a_service_that_a_topic_names() -> None:
    assert {"gateway", "scheduler", "health", "projector"} <= set(roles())
