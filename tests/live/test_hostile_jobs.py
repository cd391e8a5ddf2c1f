"""Programs that misbehave, requests that are too much, and a full disk: a clear answer each, and the cell goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.runtime.trial import TrialCell
from tests.live.audit import all_readers_agree
from tidemill import Client, TidemillError, job_request
from tidemill.errors import UnavailableError
from tidemill.v1 import views_pb2

LOG_MIB, PROCESSES_MAX, FORKS = 1, 300, 10_000


@pytest.fixture(scope="module")
def cell() -> Iterator[TrialCell]:
    """One node whose runs may have little."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TIDEMILL_AGENT_RUN_LOG_MIB", str(LOG_MIB))
        environment.setenv("TIDEMILL_AGENT_RUN_PROCESSES_MAX", str(PROCESSES_MAX))
        flags = ("--fake-gpus", "2xH100", "--log-level", "warning")
        with TrialCell("hostile", agents=1, flags=flags) as started:
            yield started


@pytest.fixture
def client(cell: TrialCell) -> Iterator[Client]:
    """Whatever was done to the cell by a test, it works afterwards."""
    with cell.client() as client:
        yield client
        assert still_works(client)
        assert all_readers_agree(cell, client).broken == []


def still_works(client: Client) -> bool:
    return run(client, ["true"]).state == "succeeded"


def submit(client: Client, command: list[str], **about: object) -> str:
    job = job_request({"name": "hostile", "command": command, "cpu": 0.5, **about})
    job.spec.grace_ms = 500
    return client.submit(job).job


def run(client: Client, command: list[str], **about: object) -> views_pb2.JobView:
    return client.wait(submit(client, command, **about), timeout_s=60)


def printed(client: Client, job: str) -> bytes:
    return b"".join(chunk.data for chunk in client.logs(job))


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def processes_with(word: str) -> list[int]:
    """Living processes that were started with this word."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # It has just ended.
    return found


def test_a_command_that_does_not_exist_is_named(client: Client) -> None:
    job = run(client, ["/no/such/program"], retry={"max_attempts": 1})
    assert job.state == "failed"
    assert "command not found: '/no/such/program'; give a path" in job.reason.message


def test_a_program_that_ignores_sigterm_is_killed(cell: TrialCell, client: Client) -> None:
    job = submit(client, ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"])
    cell.until("it to be deaf", lambda: b"deaf" in printed(client, job))
    client.cancel(job)
    ended = client.wait(job, timeout_s=60)
    assert (ended.state, ended.attempts[-1].runs[0].signal) == ("cancelled", signal.SIGKILL)


def test_daemons_end_with_their_job(client: Client, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    daemon = f"(setsid env -i PATH=/usr/bin:/bin sh -c 'echo $$ > {pid}; exec sleep 1000' &)"
    job = run(client, ["sh", "-c", f"{daemon}; while [ ! -s {pid} ]; do sleep 0.01; done"])
    assert job.state == "succeeded"
    assert not lives(int(pid.read_text()))


def test_a_program_that_fills_its_log_keeps_the_end_of_it(client: Client) -> None:
    job = run(client, ["sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo the end"])
    assert job.state == "succeeded"
    kept = printed(client, job.job)
    assert kept.endswith(b"x\nthe end\n")
    assert len(kept) <= 2 * LOG_MIB << 20


def test_a_program_that_never_saves_succeeds_when_it_ends_by_itself(client: Client) -> None:
    job = run(client, ["true"], overlap_safe=True)
    assert (job.state, job.durable_step, list(job.checkpoints)) == ("succeeded", -1, [])


def test_a_program_that_exits_0_when_told_to_stop_has_not_succeeded(
    cell: TrialCell, client: Client
) -> None:
    job = submit(client, ["sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"])
    cell.until("it to run", lambda: b"up" in printed(client, job))
    client.hold(job)
    cell.until("it to be held", lambda: client.job(job).state == "held")
    assert client.job(job).attempts[-1].runs[0].exit_code == 0
    client.cancel(job)


def test_ten_thousand_forks_meet_a_wall_and_end_with_the_job(
    cell: TrialCell, client: Client, tmp_path: Path
) -> None:
    program = tmp_path / "forks.py"
    program.write_text(
        "import os, signal\n"
        "made = 0\n"
        f"for _ in range({FORKS}):\n"
        "    try:\n"
        "        if os.fork() == 0:\n"
        "            signal.pause()\n"
        "        made += 1\n"
        "    except OSError:\n"
        "        break\n"
        "print('made', made, flush=True)\n"
        "signal.pause()\n"
    )
    job = submit(client, [sys.executable, "-I", "-S", str(program)])
    cell.until("the wall", lambda: b"made" in printed(client, job))
    assert 0 < int(printed(client, job).split()[1]) < PROCESSES_MAX
    client.cancel(job)
    assert client.wait(job, timeout_s=60).state == "cancelled"
    assert processes_with(str(program)) == []


def test_unicode_goes_through_from_end_to_end(client: Client) -> None:
    words = "héllo 日本 💥 \u202e"
    job = run(
        client, ["sh", "-c", 'echo "$1 $WORDS"', "sh", words], env={"WORDS": words}, name=words
    )
    assert (job.state, job.spec.name) == ("succeeded", words)
    assert printed(client, job.job).decode() == f"{words} {words}\n"


@pytest.mark.parametrize(
    ("about", "field"),
    [
        ({"name": "n" * 5_000}, "name"),
        ({"labels": {f"k{i}": "v" for i in range(2_000)}}, "labels"),
        ({"env": {"BIG": "x" * (1 << 20)}}, "env.*at most 131071 bytes"),
    ],
    ids=["name", "labels", "environment"],
)
def test_what_is_too_much_is_refused_with_its_field(
    client: Client, about: dict[str, object], field: str
) -> None:
    with pytest.raises(TidemillError, match=field):
        submit(client, ["true"], **about)


@pytest.mark.parametrize("number", [-1, 1 << 31, 1 << 63, 1 << 70])
def test_resources_that_no_number_holds_are_refused(client: Client, number: int) -> None:
    with pytest.raises(TidemillError, match="gpus"):
        submit(client, ["true"], gpus=number)


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the next cell keeps everything."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a small tmpfs, which takes root")
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(ballast: Path) -> None:
    """Not a byte is left."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def submit_until_refused(client: Client, told: list[str]) -> None:
    """What fits into pages that the store has already is still taken."""
    while True:
        job = job_request({"name": "late", "command": ["true"], "env": {"PAD": "x" * 50_000}})
        told.append(client.submit(job, deadline_s=5.0).job)


def test_on_a_full_disk_submitters_are_told_and_nothing_is_lost(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    flags = ("--fake-gpus", "2xH100", "--log-level", "warning")
    with TrialCell("full", agents=1, flags=flags) as cell, cell.client() as client:
        kept = [submit(client, ["true"]) for _ in range(5)]
        fill(ballast)
        told: list[str] = []
        with pytest.raises(UnavailableError, match="space"):
            submit_until_refused(client, told)
        ballast.unlink()
        cell.until("the cell to go on", lambda: still_works(client), within_s=120)
        for job in kept + told:
            assert client.wait(job, timeout_s=60).state == "succeeded"
        audit = all_readers_agree(cell, client)
    assert audit.broken == []
    assert set(kept + told) <= set(audit.cluster.jobs)
