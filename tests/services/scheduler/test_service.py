"""`tidemilld scheduler` and `tidemilld gap` as processes on one embedded cell: takeover, handover, exits, monitor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.runtime import codec
from services.runtime.exits import ExitCode
from services.runtime.ports import Outgoing
from services.runtime.reader import LogReader
from services.runtime.settings import CellSettings
from services.runtime.wiring import Cell, open_cell
from statemachines import invariants
from statemachines.cluster import Cluster
from tests.services.scheduler.cell import spec
from tidemill.v1 import common_pb2, requests_pb2

WITHIN_S = 60.0


class Site:
    """A cell's directory, its schedulers and what any reader makes of its log."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings = CellSettings(directory=str(directory))
        self.cell: Cell = open_cell(self.settings)
        self.log = self.cell.event_log()
        self.publisher = self.cell.publisher()
        self.cluster = Cluster(self.settings.cell)
        self.reader = LogReader(self.log, self.cluster)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """A command on this cell; its log lines come through stderr."""
        command = [sys.executable, "-m", "services.runtime.cli", *argv]
        command[1:3] = ["-c", "import sys; from services.runtime.cli import main; sys.exit(main())"]
        environment = {**os.environ, "TIDEMILL_DIRECTORY": str(self.directory)}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def scheduler(self, *flags: str) -> subprocess.Popen[str]:
        return self.start("scheduler", *flags)

    def until(self, holds: Callable[[], bool]) -> None:
        """Read the log until something holds."""
        ends = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < ends, f"not within {WITHIN_S} s; term {self.cluster.term}"
            self.reader.read(timeout_s=0.1)

    def submit(self, job: str) -> None:
        wanted = common_pb2.JobSpec(**codec.encode_value(spec()))
        request = requests_pb2.Request(
            request=f"user:alice/{job}",
            principal=common_pb2.Principal(name="user:alice"),
            submit_job=requests_pb2.SubmitJob(job=job, spec=wanted),
        )
        self.publisher.publish([Outgoing("requests", b"", request.SerializeToString())])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for port in (self.log, self.publisher):
            port.close()
        self.cell.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def lines(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    """The JSON lines of a process that has ended."""
    _, said = process.communicate(timeout=WITHIN_S)
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_when_the_leader_is_killed_the_standby_decides_on_without_a_loss(site: Site) -> None:
    first = site.scheduler("--name", "one")
    site.until(lambda: site.cluster.leader == "one")
    site.scheduler("--name", "two")
    for number in range(20):
        site.submit(f"j{number}")
        if number == 10:
            first.kill()
    site.until(lambda: len(site.cluster.jobs) == 20)
    assert (site.cluster.leader, site.cluster.voided) == ("two", 0)
    assert [job.number for job in site.cluster.jobs.values()] == list(range(1, 21))
    assert invariants.violations(site.cluster) == []


def test_killed_again_and_again_it_loses_nothing_and_decides_nothing_twice(site: Site) -> None:
    for number in range(4):
        process = site.scheduler("--snapshot-entries", "1")
        site.submit(f"j{number}")
        term = number + 1
        site.until(lambda: site.cluster.term >= term)  # noqa: B023 - called at once
        process.kill()
        process.wait()
    site.scheduler()
    site.until(lambda: len(site.cluster.jobs) == 4)
    assert site.cluster.next_number == 5


def test_asked_to_stop_it_hands_over_and_exits_with_0(site: Site) -> None:
    process = site.scheduler()
    site.submit("a")
    site.until(lambda: len(site.cluster.jobs) == 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WITHIN_S) == ExitCode.STOPPED
    snapshots = site.cell.snapshots()
    newest = next(iter(snapshots.load()))
    snapshots.close()
    site.reader.read_to_end()
    assert newest.offset == site.cluster.offset


def test_a_term_behind_the_logs_ends_it_with_what_to_do(site: Site) -> None:
    process = site.scheduler()
    site.until(lambda: site.cluster.term == 1)
    process.kill()
    process.wait()
    (site.directory / "leader.lock").write_text("0\n")
    refused = site.scheduler()
    said = lines(refused)
    assert refused.returncode == ExitCode.TERM_BEHIND
    assert said[-1]["event"] == "scheduler_ends"
    assert "Refusing to lead" in str(said[-1]["why"])


def test_two_that_both_believe_they_lead_end_by_the_chain(site: Site) -> None:
    site.scheduler("--leadership", "always", "--name", "one")
    site.until(lambda: site.cluster.leader == "one")
    site.scheduler("--leadership", "always", "--name", "two")
    site.until(lambda: site.cluster.leader == "two")
    assert site.processes[0].wait(WITHIN_S) == ExitCode.DEPOSED
    site.submit("a")
    site.until(lambda: len(site.cluster.jobs) == 1)
    assert invariants.violations(site.cluster) == []


def test_a_gap_stops_it_and_is_passed_only_by_an_operators_word(site: Site) -> None:
    first = site.scheduler()
    site.submit("a")
    site.until(lambda: len(site.cluster.jobs) == 1)
    first.send_signal(signal.SIGTERM)
    first.wait(WITHIN_S)
    site.submit("b")
    site.submit("c")
    drop_inputs(site, before=2)
    stopped = site.scheduler()
    said = lines(stopped)
    assert stopped.returncode == ExitCode.INPUT_GAP
    assert "tidemilld gap accept requests 0 2 --message WHY" in str(said[-1]["why"])
    gap = site.start("gap", "accept", "requests", "0", "2", "--message", "the disk was replaced")
    assert gap.wait(WITHIN_S) == ExitCode.STOPPED
    site.scheduler()
    site.until(lambda: len(site.cluster.jobs) == 2)
    assert list(site.cluster.jobs) == ["a", "c"]


def test_a_gap_is_not_accepted_backwards(site: Site) -> None:
    first = site.scheduler()
    site.submit("a")
    site.until(lambda: len(site.cluster.jobs) == 1)
    first.send_signal(signal.SIGTERM)
    first.wait(WITHIN_S)
    gap = site.start("gap", "accept", "requests", "0", "1", "--message", "oops")
    assert gap.wait(WITHIN_S) == ExitCode.SETTINGS
    site.reader.read_to_end()
    assert site.cluster.term == 1


def test_it_shows_its_state_to_whoever_monitors(site: Site) -> None:
    process = site.scheduler()
    assert process.stderr is not None
    address = ""
    while not address:
        line = json.loads(process.stderr.readline())
        address = str(line["address"]) if line["event"] == "monitor_listens" else ""
    site.submit("a")
    site.until(lambda: len(site.cluster.jobs) == 1)

    def page(path: str) -> str:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=WITHIN_S) as answer:
            text: str = answer.read().decode()
            return text

    ends = time.monotonic() + WITHIN_S
    while 'tidemill_jobs{queue="default",state="queued"} 1.0' not in page("metrics"):
        assert time.monotonic() < ends, page("metrics")
    shown = page("metrics")
    for line in (
        "tidemill_leader 1.0",
        "tidemill_term 1.0",
        'tidemill_facts_total{fact="JobAdmitted"} 1.0',
    ):
        assert line in shown
    assert page("readyz") == "ready\n"


def drop_inputs(site: Site, *, before: int) -> None:
    """Let retention pass over the requests topic."""
    import sqlite3

    from services.runtime.adapters.sqlite_streams import stream_name

    with sqlite3.connect(site.directory / "cell.db") as connection:
        name = stream_name("requests", 0)
        connection.execute(f'DELETE FROM "{name}" WHERE offset < ?', (before,))
        connection.execute("UPDATE streams SET oldest = ? WHERE name = ?", (before, name))
