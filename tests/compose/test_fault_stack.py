"""Three of each: what was acknowledged survives any one, and comes back with a majority."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compose.local.stack import Condition, Stack, StackError

pytestmark = [pytest.mark.kafka, pytest.mark.etcd, pytest.mark.timeout(300)]
WAIT_S = 60.0
BROKERS = ("kafka-1", "kafka-2", "kafka-3")


@pytest.fixture
def topic(fault_stack: Stack) -> str:
    """Three replicas, of which two must have a record before it is acknowledged: the defaults."""
    admin = AdminClient({"bootstrap.servers": fault_stack.layout.bootstrap})
    name = f"kept-{uuid4().hex}"
    for made in admin.create_topics([NewTopic(name, 1)]).values():
        made.result(WAIT_S)
    return name


@pytest.fixture
def consumer(fault_stack: Stack) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": fault_stack.layout.bootstrap, "group.id": "unused"}
    consumer = Consumer({**settings, "log_level": 0})
    yield consumer
    consumer.close()


def test_no_acknowledged_record_is_lost_while_each_broker_is_killed_in_turn(
    fault_stack: Stack, topic: str, consumer: Consumer
) -> None:
    settings = {"bootstrap.servers": fault_stack.layout.bootstrap, "enable.idempotence": True}
    producer = Producer({**settings, "log_level": 0})
    failures: list[object] = []
    for name in BROKERS:
        assert fault_stack.kill(name)
        producer.produce(topic, name.encode(), on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(WAIT_S) == 0
        fault_stack.start(name)
        fault_stack.wait_healthy()
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = [message.value() for message in consumer.consume(len(BROKERS), WAIT_S)]
    assert (read, failures) == ([name.encode() for name in BROKERS], [None, None, None])


def test_programs_at_the_outer_door_are_told_its_advertised_ports_only(fault_stack: Stack) -> None:
    brokers = fault_stack.layout.brokers
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{brokers[0].outer}", "log_level": 0})
    known = admin.list_topics(timeout=WAIT_S).brokers.values()
    assert sorted((broker.id, broker.port) for broker in known) == [
        (broker.node_id, broker.outer_advertised) for broker in brokers
    ]


def test_etcd_without_a_majority_serves_nobody_and_heals_with_it(fault_stack: Stack) -> None:
    fault_stack.kill("etcd-1")
    fault_stack.pause("etcd-2")
    with pytest.raises(StackError, match=r"not healthy after 0 s: etcd-3"):
        fault_stack.wait_healthy("etcd-3", timeout_s=0)
    fault_stack.resume("etcd-2")
    fault_stack.wait_healthy("etcd-2", "etcd-3")
    assert fault_stack.condition("etcd-1") is Condition.DOWN


def test_the_next_test_finds_all_members_healed(fault_stack: Stack) -> None:
    assert [row.trouble for row in fault_stack.status()] == [""] * 6
