"""What a scheduler on real Kafka and etcd does when its topics or elections are not what they were: stop, and say why.

Each test starts the real process on a cell of its own, and reads its exit code and its last words.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from services.runtime import codec
from services.runtime.adapters.kafka import KafkaEventLog
from services.runtime.exits import ExitCode
from services.runtime.ports import PortError
from services.runtime.reader import LogReader
from statemachines.cluster import FOLD_VERSION, Cluster
from statemachines.entry import GENESIS, Recorded
from statemachines.facts import InputParked, TermOpened
from tests.fixtures.kafka_cell import KafkaCell, kafka_cell

pytestmark = [pytest.mark.kafka, pytest.mark.etcd]
WITHIN_S = 60.0
UNKNOWN_FACT = b"\x12\x05" + b"\xa2\x06\x02\x0a\x00"  # Fact{field 100: ...}


class Site:
    """A cell on the broker, its schedulers, and a reader of its log."""

    def __init__(self, cell: KafkaCell, etcd: tuple[str, ...]) -> None:
        self.cell = cell
        self.cluster = Cluster(cell.settings.cell)
        self.parked: list[InputParked] = []
        self._etcd = ",".join(etcd)
        self.log: KafkaEventLog = cell.log()
        self._reader = LogReader(self.log, self.cluster)
        self._processes: list[subprocess.Popen[str]] = []

    def scheduler(self) -> subprocess.Popen[str]:
        settings = self.cell.settings
        process = subprocess.Popen(
            [
                sys.executable, "-m", "services.scheduler", "--cell", settings.cell, "--log", "kafka",
                "--kafka", settings.bootstrap, "--leadership", "etcd", "--etcd", self._etcd, "--log-format", "json",
            ],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def until(self, holds: Callable[[], bool]) -> None:
        """Read the log until something holds."""
        ends = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < ends, f"not within {WITHIN_S} s; term {self.cluster.term}"
            for folded in self._reader.read(timeout_s=0.1):
                facts = [recorded.fact for recorded in folded.entry.facts]
                self.parked += [fact for fact in facts if isinstance(fact, InputParked)]

    def append(self, body: bytes, *, term: int, head: bytes = b"") -> None:
        """An entry that extends the chain, whoever may have written it."""
        prev = head or self.cluster.head or GENESIS
        at_ms = self.cluster.at_ms + 1
        cell = self.cell.settings.cell
        self.log.append(codec.encode_entry(cell=cell, term=term, prev=prev, at_ms=at_ms, body=body))

    def last_words(self, process: subprocess.Popen[str], code: ExitCode) -> str:
        """Why it ended, once it has, with that code."""
        _, said = process.communicate(timeout=WITHIN_S)
        assert process.returncode == code, said[-2000:]
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return str([line["why"] for line in lines if line["event"] == "scheduler_ends"][-1])

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def site(kafka_bootstrap: str, etcd_endpoints: tuple[str, ...]) -> Iterator[Site]:
    with kafka_cell(kafka_bootstrap) as cell:
        made = Site(cell, etcd_endpoints)
        yield made
        made.close()


def test_records_that_nobody_can_read_are_parked_or_void_and_the_cell_goes_on(site: Site) -> None:
    site.scheduler()
    site.until(lambda: site.cluster.term > 0)
    site.cell.write("log", None, b"\xff not an entry")
    site.cell.write("requests", b"k", b"\xff not a request")
    site.until(lambda: bool(site.parked))
    (parked,) = site.parked
    assert (parked.topic, parked.partition, parked.offset) == ("requests", 0, 0)
    site.cell.write("requests", b"k", b"\xff nor this")
    site.until(lambda: len(site.parked) == 2)


def test_inputs_that_retention_took_stop_it_with_the_command_that_goes_on(site: Site) -> None:
    for _ in range(3):
        site.cell.write("requests", b"k", b"\xff")
    site.cell.drop("requests", 0, 2)
    why = site.last_words(site.scheduler(), ExitCode.INPUT_GAP)
    assert "inputs 0..1 are gone" in why
    assert "tidemilld gap accept requests 0 2 --message WHY" in why


def test_an_input_topic_made_anew_stops_it_with_the_command_that_goes_on(site: Site) -> None:
    first = site.scheduler()
    for _ in range(3):
        site.cell.write("requests", b"k", b"\xff")
    site.until(lambda: len(site.parked) == 3)
    first.send_signal(signal.SIGTERM)
    assert first.wait(WITHIN_S) == ExitCode.STOPPED
    site.cell.delete("requests")
    _until_done(site.cell.make)
    why = site.last_words(site.scheduler(), ExitCode.INPUT_GAP)
    assert "made anew" in why
    assert "tidemilld gap accept requests 0 0 --made-anew" in why


def test_a_fact_of_a_newer_version_stops_it(site: Site) -> None:
    first = site.scheduler()
    site.until(lambda: site.cluster.term > 0)
    first.send_signal(signal.SIGTERM)
    assert first.wait(WITHIN_S) == ExitCode.STOPPED
    site.append(UNKNOWN_FACT, term=site.cluster.term)
    why = site.last_words(site.scheduler(), ExitCode.LOG_NEWER)
    assert "Upgrade this process" in why


def test_elections_that_went_backwards_stop_it_and_nothing_is_written(site: Site) -> None:
    restored_from = 1 << 40  # The log has seen a term that this etcd is far from.
    opened = TermOpened(restored_from, "before", "nonce", FOLD_VERSION)
    site.append(codec.encode_body((), [Recorded(opened)]), term=restored_from, head=GENESIS)
    site.until(lambda: site.cluster.term == restored_from)
    why = site.last_words(site.scheduler(), ExitCode.TERM_BEHIND)
    assert f"the log is at term {restored_from} already" in why
    assert "restored from a backup" in why
    assert site.log.read(site.cluster.offset + 1, limit=1, timeout_s=0) == []


def _until_done(make: Callable[[], None]) -> None:
    """A topic that is being deleted cannot be made for a moment."""
    ends = time.monotonic() + WITHIN_S
    while True:
        try:
            make()
        except PortError:
            assert time.monotonic() < ends, "the topic cannot be made again"
        else:
            return
