"""`tidemilld scheduler` on real Kafka and etcd: takeover, zombies, gaps, poison, and an etcd that went back in time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.runtime import codec
from services.runtime.cli import run
from services.runtime.exits import ExitCode
from services.runtime.ports import Outgoing
from services.runtime.reader import Folded, LogReader
from services.scheduler import gap
from statemachines import invariants
from statemachines.cluster import Cluster
from statemachines.facts import InputParked
from tests.fixtures.kafka_cell import KafkaCell, kafka_cell
from tests.fixtures.stack import _launched
from tests.services.scheduler.cell import spec
from tidemill.v1 import common_pb2, requests_pb2

pytestmark = [pytest.mark.kafka, pytest.mark.etcd, pytest.mark.timeout(240)]

WITHIN_S = 60.0
LEASE_S = 3


class Site:
    """A cell on Kafka and etcd, its schedulers, and what any reader makes of its log."""

    def __init__(self, cell: KafkaCell, etcd: tuple[str, ...], directory: Path) -> None:
        self.made = cell
        self.environment = {
            "TIDEMILL_CELL": cell.settings.cell,
            "TIDEMILL_DIRECTORY": str(directory),
            "TIDEMILL_LOG": "kafka",
            "TIDEMILL_KAFKA": cell.settings.bootstrap,
            "TIDEMILL_LEADERSHIP": "etcd",
            "TIDEMILL_ETCD": ",".join(etcd),
        }
        self.publisher = cell.publisher()
        self.cluster = Cluster(cell.settings.cell)
        self.reader = LogReader(cell.log(), self.cluster)
        self.folded: list[Folded] = []
        self.processes: list[subprocess.Popen[str]] = []

    def scheduler(self, name: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.scheduler", "--name", name, "--log-format", "json"],
            env={**os.environ, **self.environment, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def until(self, holds: Callable[[], bool]) -> float:
        """Read the log until something holds; when it did."""
        ends = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < ends, f"not within {WITHIN_S} s; term {self.cluster.term}"
            self.folded += self.reader.read(timeout_s=0.05)
        return time.monotonic()

    def leads(self, name: str) -> Callable[[], bool]:
        return lambda: self.cluster.leader == name

    def submit(self, job: str) -> None:
        wanted = common_pb2.JobSpec(**codec.encode_value(spec()))
        request = requests_pb2.Request(
            request=f"user:alice/{job}",
            principal=common_pb2.Principal(name="user:alice"),
            submit_job=requests_pb2.SubmitJob(job=job, spec=wanted),
        )
        self.publisher.publish([Outgoing("requests", b"", request.SerializeToString())])

    def jobs(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.cluster.jobs) == count

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def site(kafka_bootstrap: str, etcd_endpoints: tuple[str, ...], tmp_path: Path) -> Iterator[Site]:
    with kafka_cell(kafka_bootstrap) as cell:
        made = Site(cell, etcd_endpoints, tmp_path)
        yield made
        made.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, object]]:
    """Exit code and last JSON line."""
    _, said = process.communicate(timeout=WITHIN_S)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return process.returncode, lines[-1]


def test_when_the_leader_is_killed_the_standby_decides_on_within_the_lease_and_a_little(
    site: Site,
) -> None:
    first = site.scheduler("one")
    site.until(site.leads("one"))
    site.scheduler("two")
    site.submit("before")
    site.until(site.jobs(1))
    for number in range(10):
        site.submit(f"j{number}")
    first.kill()
    killed = time.monotonic()
    for number in range(10, 20):
        site.submit(f"j{number}")
    opened = site.until(site.leads("two"))
    site.until(site.jobs(21))
    print(f"failover: {opened - killed:.2f} s from kill -9 to the next accepted entry")
    assert [job.number for job in site.cluster.jobs.values()] == list(range(1, 22))
    assert invariants.violations(site.cluster) == []


def test_asked_to_stop_it_hands_over_at_once(site: Site) -> None:
    first = site.scheduler("one")
    site.until(site.leads("one"))
    site.scheduler("two")
    site.submit("a")
    site.until(site.jobs(1))
    first.send_signal(signal.SIGTERM)
    assert first.wait(WITHIN_S) == ExitCode.STOPPED
    site.until(site.leads("two"))
    site.submit("b")
    site.until(site.jobs(2))
    assert site.cluster.voided == 0


def test_a_leader_frozen_past_its_lease_decides_nothing_when_it_thaws_and_ends(site: Site) -> None:
    """At chance moments under load; whatever it had in flight is void by the chain."""
    chance = random.Random(4)
    names = ["zero", "one", "two", "three"]
    current = site.scheduler(names[0])
    site.until(site.leads(names[0]))
    submitted = 0
    for name in names[1:]:
        following = site.scheduler(name)
        for _ in range(20):
            site.submit(f"j{submitted}")
            submitted += 1
        threading.Event().wait(chance.uniform(0, 0.2))
        os.kill(current.pid, signal.SIGSTOP)
        site.submit(f"j{submitted}")
        submitted += 1
        site.until(site.leads(name))
        term = site.cluster.term
        os.kill(current.pid, signal.SIGCONT)
        code, _ = ended(current)
        assert code in {ExitCode.LEADERSHIP_LOST, ExitCode.DEPOSED}
        site.until(site.jobs(submitted))
        late = [f for f in site.folded if f.accepted and f.entry.term < term]
        opening = next(f for f in site.folded if f.accepted and f.entry.term == term)
        assert all(f.entry.offset < opening.entry.offset for f in late)
        current = following
    assert site.cluster.next_number == submitted + 1
    assert invariants.violations(site.cluster) == []


def test_killed_again_and_again_with_snapshots_it_decides_nothing_twice(site: Site) -> None:
    flags = {"TIDEMILL_SCHEDULER_SNAPSHOT_ENTRIES": "1"}
    for number in range(3):
        process = site.scheduler(f"s{number}", **flags)
        site.submit(f"j{number}")
        site.until(site.leads(f"s{number}"))
        process.kill()
        process.wait()
    site.scheduler("last", **flags)
    site.until(site.jobs(3))
    assert site.cluster.next_number == 4
    assert invariants.violations(site.cluster) == []


def test_a_record_that_nobody_can_read_is_parked_and_the_cell_goes_on(site: Site) -> None:
    site.scheduler("one")
    site.made.write("requests", b"k", b"\xff\xfe not a request")
    site.made.write("requests", None, None)
    site.submit("a")
    site.until(site.jobs(1))
    facts = [recorded.fact for folded in site.folded for recorded in folded.entry.facts]
    parked = [fact for fact in facts if isinstance(fact, InputParked)]
    assert [(fact.topic, fact.offset) for fact in parked] == [("requests", 0), ("requests", 1)]
    assert parked[0].record == b"\xff\xfe not a request"


@pytest.mark.parametrize("loss", ["retention", "made anew"])
def test_inputs_that_are_gone_stop_it_until_an_operator_accepts(
    site: Site, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site.scheduler("one")
    site.submit("a")
    site.until(site.jobs(1))
    first.kill()
    first.wait()
    site.submit("lost")
    if loss == "retention":
        site.made.drop("requests", 0, 2)
        accept = ["accept", "requests", "0", "2", "--message", "test"]
    else:
        site.made.delete("requests")
        site.made.make()
        accept = ["accept", "requests", "0", "0", "--made-anew", "--message", "test"]
    code, last = ended(site.scheduler("two"))
    assert code == ExitCode.INPUT_GAP
    assert f"tidemilld gap {' '.join(accept[:-1])} WHY" in str(last["why"])
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    assert run(gap.main, accept) == ExitCode.STOPPED
    site.scheduler("three")
    site.publisher = site.made.publisher()
    site.submit("b")
    site.until(site.jobs(2))
    assert set(site.cluster.jobs) == {"a", "b"}


def test_an_etcd_that_went_back_in_time_ends_it_with_what_to_do(site: Site, tmp_path: Path) -> None:
    first = site.scheduler("one")
    site.until(site.leads("one"))
    first.kill()
    first.wait()
    with _launched(tmp_path, brokers=0, etcd=1) as fresh:
        code, last = ended(site.scheduler("two", TIDEMILL_ETCD=fresh.layout.endpoints))
    assert code == ExitCode.TERM_BEHIND
    assert "Refusing to lead" in str(last["why"])
