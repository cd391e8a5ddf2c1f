"""A program with a Kafka client, and nothing else, submits a job whose program says its progress straight to Kafka."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer

from services.runtime.tokens import CELL_KEY_FILE, KEYS_DIRECTORY, account_key, job_token, read_key
from services.runtime.topic_admin import Declared, apply
from services.runtime.topics import TOPICS
from services.runtime.trial import TrialCell
from services.runtime.wiring import open_topic_admin
from statemachines.facts import JobAdmitted
from tests.live.audit import Audit
from tidemill import Client
from tidemill.kafka import OutsideProducer, progress_record, submission_record
from tidemill.v1 import common_pb2, job_service_pb2

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "outside_producer.py"
CI = "service:ci"
STEPS = 30


class OutsideCell(TrialCell):
    """On a broker, led by a lock file; one agent."""

    def __init__(self, kafka: str) -> None:
        self.kafka = kafka
        stack = ("--log", "kafka", "--kafka", kafka)
        super().__init__(f"outside-{secrets.token_hex(3)}", agents=1, stack=stack)

    def prepare(self) -> None:
        said: list[str] = []
        assert apply(open_topic_admin(self.settings), Declared(self.name, 1), said.append), said

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        names = [topic.name(self.name) for topic in TOPICS.values()]
        open_topic_admin(self.settings).delete(names)

    def key(self) -> bytes:
        return read_key(self.directory / KEYS_DIRECTORY / CELL_KEY_FILE)

    def metrics(self, service: str) -> list[str]:
        """Lines of a service's page; none while it starts."""
        lines = (self.directory / "up.log").read_text().splitlines()
        said = [json.loads(line) for line in lines if line.startswith("{")]
        address = [line["address"] for line in said
                   if line["event"] == "monitor_listens" and line["service"] == service]  # fmt: skip
        if not address:
            return []
        try:
            with urlopen(f"http://{address[-1]}/metrics", timeout=10) as answer:
                page: str = answer.read().decode()
        except OSError:
            return []
        return page.splitlines()

    def counts(self, service: str, name: str) -> dict[str, float]:
        """A counter of a service, by its one label."""
        rows = [line for line in self.metrics(service) if line.startswith(f"{name}{{")]
        return {row.split('"')[1]: float(row.split()[-1]) for row in rows}


@pytest.fixture
def cell(kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[OutsideCell]:
    monkeypatch.setenv("TIDEMILL_GATEWAY_OUTSIDE_ACCOUNTS", CI)
    monkeypatch.setenv("TIDEMILL_HEALTH_OUTSIDE_PROGRESS", "true")
    with OutsideCell(kafka_bootstrap) as made:
        yield made


def example(cell: OutsideCell, *argv: str, **env: str) -> None:
    flags = ["--kafka", cell.kafka, "--cell", cell.name]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), argv[0], *flags, *argv[1:]],
        env=os.environ | env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "stored\n"), done.stderr


def submission(request_id: str) -> job_service_pb2.SubmitJobRequest:
    role = common_pb2.Role(name="worker", count=1, resources=common_pb2.Resources(cpu_milli=100))
    return job_service_pb2.SubmitJobRequest(
        request_id=request_id,
        spec=common_pb2.JobSpec(name="sdk", queue="default", roles=[role]),
        launch=common_pb2.Launch(argv=["true"]),
    )


def test_jobs_and_progress_come_straight_through_kafka_and_forgeries_do_not(
    cell: OutsideCell,
) -> None:
    cell.until(
        "the cell to be judged", lambda: "tidemill_health_active 1.0" in cell.metrics("health")
    )
    key = account_key(cell.key(), CI)
    program = [sys.executable, str(EXAMPLE), "progress", "--kafka", cell.kafka, "--cell", cell.name,
               "--steps", str(STEPS)]  # fmt: skip
    submit = ("submit", "--principal", CI, "--id", "first", "--", *program)
    for _ in range(2):  # Sent again: decided once.
        example(cell, *submit, TIDEMILL_ACCOUNT_KEY=key)
    with OutsideProducer(cell.kafka, cell.name) as producer:
        producer.submit(key, submission("second"), principal=CI)
    hostile(cell, key)
    with cell.client() as client:
        cell.until("both jobs to succeed", lambda: succeeded(client) == 2, within_s=120)
    progress = "tidemill_telemetry_total"
    cell.until(
        "each step to be observed",
        lambda: cell.counts("health", progress).get("progress", 0) >= STEPS,
    )
    refused = {"forged": 1, "unproven": 1, "expired": 1}
    cell.until(
        "forged progress to be counted",
        lambda: cell.counts("health", "tidemill_progress_refused_total") == refused,
    )
    wanted = {"taken": 3, "forged": 1, "expired": 1, "account_not_allowed": 1, "unreadable": 1}
    cell.until(
        "every submission to be counted",
        lambda: cell.counts("gateway", "tidemill_gateway_outside_total") == wanted,
    )
    audit = Audit(cell)
    assert audit.broken == []
    assert sum(isinstance(fact, JobAdmitted) for fact in audit.facts) == 2


def hostile(cell: OutsideCell, key: str) -> None:
    """Write what must come to nothing."""
    token = job_token(cell.key(), "victim", 1)
    of_victim = {"job": "victim", "attempt": 1, "rank": 0, "step": 9}
    other = account_key(cell.key(), "service:other")
    records = [
        ("progress", progress_record("guess", **of_victim)),  # type: ignore[arg-type]
        ("progress", progress_record(token, **of_victim, at_ms=1)),  # type: ignore[arg-type]
        ("progress", (b"victim", b"\x0a\x06victim")),
        ("outside", submission_record("guess", submission("forged"), principal=CI)),
        ("outside", submission_record(key, submission("old"), principal=CI, at_ms=1)),
        ("outside", submission_record(other, submission("x"), principal="service:other")),
        ("outside", (b"", b"\xff")),
    ]
    producer = Producer({"bootstrap.servers": cell.kafka})
    for suffix, (routing, value) in records:
        producer.produce(f"{cell.name}.{suffix}", value, routing)
    assert producer.flush(30) == 0


def succeeded(client: Client) -> int:
    return len(list(client.jobs(job_service_pb2.JobFilter(states=["succeeded"]))))
