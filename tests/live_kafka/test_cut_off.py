"""A cell whose every connection to Kafka passes a proxy that breaks it: what was sent may or may not have arrived."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from compose.local.stack import Stack
from services.runtime.trial_kafka import KafkaTrialCell
from tests.fixtures.fault_proxy import HOST, Direction, FaultProxy, Timeout
from tests.live.audit import all_readers_agree
from tests.live_kafka.load import Load, assert_decided_once, rounds

WAYS: tuple[Direction, Direction] = ("upstream", "downstream")
pytestmark = [pytest.mark.kafka, pytest.mark.etcd]


@pytest.fixture
def proxies(fault_stack: Stack) -> Iterator[list[FaultProxy]]:
    """One in front of each broker, at the address that the broker gives out."""
    with ExitStack() as closing:
        yield [
            closing.enter_context(
                FaultProxy(upstream_port=broker.outer, listen_port=broker.outer_advertised)
            )
            for broker in fault_stack.layout.brokers
        ]


@pytest.fixture
def cell(fault_stack: Stack, proxies: list[FaultProxy]) -> Iterator[KafkaTrialCell]:
    """All of its processes, and the test's own readers, go through the proxies."""
    kafka = ",".join(f"{HOST}:{proxy.port}" for proxy in proxies)
    with KafkaTrialCell("cut", kafka=kafka, etcd=fault_stack.layout.endpoints) as started:
        yield started
        for proxy in proxies:
            proxy.heal()


@pytest.mark.timeout(900)
def test_connections_cut_between_send_and_acknowledgement_decide_everything_once(
    cell: KafkaTrialCell, proxies: list[FaultProxy]
) -> None:
    chance = random.Random(7)
    with Load(cell, per_s=100) as load:
        for number in range(rounds(10, 60)):
            time.sleep(chance.random())  # The instant of the cut is any.
            # Silent one way first: requests that never arrive, or acknowledgements that never come back.
            for proxy in proxies:
                proxy.add(Timeout(), WAYS[number % 2])
            time.sleep(chance.random() / 2)
            for proxy in proxies:
                proxy.heal()
                proxy.cut()
    with cell.client() as client:
        audit = all_readers_agree(cell, client)
    assert_decided_once(audit, load.acknowledged)
    assert len(load.acknowledged) > 100
