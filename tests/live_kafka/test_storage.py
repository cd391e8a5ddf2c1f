"""Brokers and etcd members go away, one by one or all: running jobs never notice, and everything goes on by itself."""

from __future__ import annotations

import time

import pytest

from compose.local.stack import Stack
from services.runtime.exits import ExitCode
from services.runtime.trial_kafka import KafkaTrialCell
from statemachines.facts import NodeLost
from tests.live.audit import all_readers_agree
from tests.live_kafka.conftest import LivingJob
from tests.live_kafka.load import Load, assert_decided_once, rounds, scheduler_ends
from tidemill import Client, job_request
from tidemill.errors import UnavailableError
from tidemill.v1 import job_service_pb2

pytestmark = [pytest.mark.kafka, pytest.mark.etcd]
IMPATIENT_S = 3.0
BACK_WITHIN_S = 120.0


@pytest.mark.timeout(900)
def test_brokers_killed_and_started_again_one_by_one_lose_nothing(
    cell: KafkaTrialCell, client: Client, living: LivingJob, fault_stack: Stack
) -> None:
    with Load(cell, per_s=50) as load:
        for broker in ("kafka-1", "kafka-2", "kafka-3"):
            fault_stack.kill(broker)
            _goes_through(client, f"without-{broker}")
            assert living.alive()
            fault_stack.start(broker)
            fault_stack.wait_healthy()
            _goes_through(client, f"with-{broker}")
    living.end(client)
    audit = all_readers_agree(cell, client)
    assert_decided_once(audit, load.acknowledged)
    assert audit.of(NodeLost) == []


@pytest.mark.timeout(900)
def test_the_whole_of_kafka_away_is_a_pause(
    cell: KafkaTrialCell, client: Client, living: LivingJob, fault_stack: Stack
) -> None:
    brokers = [name for name in fault_stack.names if name.startswith("kafka")]
    for broker in brokers:
        fault_stack.kill(broker)
    gone_at = time.monotonic()
    with cell.client() as impatient:
        refused = _refused(impatient)
    _keep_away(gone_at, living)
    for broker in brokers:
        fault_stack.start(broker)
    fault_stack.wait_healthy()
    _goes_through(client, "after")
    living.end(client)
    audit = all_readers_agree(cell, client)
    assert audit.broken == []
    assert audit.of(NodeLost) == []
    assert str(refused)


@pytest.mark.timeout(900)
def test_without_a_majority_of_etcd_nobody_leads_and_nothing_is_lost(
    cell: KafkaTrialCell, client: Client, living: LivingJob, fault_stack: Stack
) -> None:
    term = client.cell().term
    for member in ("etcd-1", "etcd-2"):
        fault_stack.kill(member)
    gone_at = time.monotonic()
    cell.until("the leader to give up", lambda: ExitCode.LEADERSHIP_LOST in scheduler_ends(cell))
    # What comes meanwhile is kept, and its answer says so.
    kept = _submit(client, "kept", deadline_s=15.0)
    _keep_away(gone_at, living)
    for member in ("etcd-1", "etcd-2"):
        fault_stack.start(member)
    fault_stack.wait_healthy()
    cell.until("a leader again", lambda: client.cell().term > term, within_s=BACK_WITHIN_S)
    again = _submit(client, "kept", deadline_s=BACK_WITHIN_S)
    assert (again.status, again.job) == (job_service_pb2.SUBMIT_STATUS_ADMITTED, kept.job)
    assert client.wait(kept.job, timeout_s=BACK_WITHIN_S).state == "succeeded"
    living.end(client)
    audit = all_readers_agree(cell, client)
    assert audit.broken == []
    assert audit.of(NodeLost) == []
    assert kept.status == job_service_pb2.SUBMIT_STATUS_DURABLE


def _keep_away(since: float, living: LivingJob) -> None:
    """The outage itself: so long, and no shorter."""
    while time.monotonic() - since < rounds(20, 60):
        assert living.alive()
        time.sleep(0.5)


def _submit(client: Client, name: str, *, deadline_s: float) -> job_service_pb2.SubmitJobResponse:
    """The same name is the same request."""
    wanted = job_request({"name": name, "command": ["true"], "cpu": 1})
    wanted.request_id = name
    return client.submit(wanted, deadline_s=deadline_s)


def _refused(client: Client) -> UnavailableError:
    """What a submitter hears who does not wait: an error that may be tried again."""
    with pytest.raises(UnavailableError) as heard:
        _submit(client, "impatient", deadline_s=IMPATIENT_S)
    return heard.value


def _goes_through(client: Client, name: str) -> None:
    job = _submit(client, name, deadline_s=BACK_WITHIN_S).job
    assert client.wait(job, timeout_s=BACK_WITHIN_S).state == "succeeded"
