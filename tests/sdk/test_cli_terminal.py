"""The command line as a process on a terminal: it follows, Ctrl-C detaches, and help loads next to nothing."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.fakes.gateway import TOKEN, FakeGateway
from tests.sdk import sample


class Terminal:
    """A process on a pseudo terminal of 100 columns."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.master, self.process, self.text = master, process, ""

    def until(self, text: str) -> None:
        """Read on until it has shown this."""
        ends = time.monotonic() + 60
        while text not in self.text:
            assert time.monotonic() < ends, self.text
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.master, 65_536).decode(errors="replace")
                except OSError as ended:  # How a terminal says that nobody writes any more.
                    code = self.process.wait(timeout=60)
                    raise AssertionError(f"it ended with {code}: {self.text!r}") from ended

    def ctrl_c(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.until("Come back with")
        return self.process.wait(timeout=60)


@contextmanager
def terminal(gateway: FakeGateway, arguments: Sequence[str], **env: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    given = os.environ | {
        "TIDEMILL_GATEWAY": gateway.address,
        "TIDEMILL_TOKEN": TOKEN,
        "COLUMNS": "100",
        "TERM": "xterm",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli", *arguments],
        env=given | env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_watched_list_is_redrawn_as_jobs_change_and_ctrl_c_detaches(gateway: FakeGateway) -> None:
    sample.fill(gateway)
    with terminal(gateway, ["jobs", "-w"]) as shown:
        shown.until("llama-pretrain")
        shown.until("4 of 4 jobs; Ctrl-C leaves")
        view = sample.training()
        view.state, view.offset = "stopping", 500
        gateway.put_job(view)
        shown.until("stopping")
        assert shown.ctrl_c() == 130
    assert "detached; jobs go on. Come back with: tidemill jobs -w" in shown.text


def test_a_followed_submission_goes_on_after_ctrl_c(gateway: FakeGateway) -> None:
    with terminal(gateway, ["submit", "--watch", "--", "true"]) as shown:
        shown.until("queued")
        assert shown.ctrl_c() == 130
    assert "Come back with: tidemill jobs -w job000000001" in shown.text
    assert list(gateway.jobs) == ["job000000001"]
    assert "CancelJob" not in {name for name, _ in gateway.calls}


def test_the_way_back_names_the_cell_and_never_the_token(gateway: FakeGateway) -> None:
    sample.fill(gateway)
    with terminal(gateway, ["--gateway", gateway.address, "--token", TOKEN, "jobs", "-w"]) as shown:
        shown.until("llama-pretrain")
        assert shown.ctrl_c() == 130
    assert f"Come back with: tidemill --gateway {gateway.address} jobs -w" in shown.text


def test_on_a_dumb_pipe_nothing_is_redrawn(gateway: FakeGateway) -> None:
    sample.fill(gateway)
    env = os.environ | {"TIDEMILL_GATEWAY": gateway.address, "TIDEMILL_TOKEN": TOKEN}
    command = [sys.executable, "-m", "tidemill.cli", "jobs", "-w"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        process.kill()
    assert all("\x1b" not in line for line in lines)
    assert {line.split()[1] for line in lines} == set(gateway.jobs)


@pytest.mark.parametrize("arguments", [["--help"], ["submit", "--help"]], ids=" ".join)
def test_help_loads_neither_grpc_nor_protobuf_nor_yaml_nor_rich(arguments: list[str]) -> None:
    program = (
        "import sys, atexit\n"
        "from tidemill.cli import main\n"
        "def check():\n"
        "    heavy = {'grpc', 'google.protobuf', 'yaml', 'rich'} & set(sys.modules)\n"
        "    print('LOADED', *sorted(heavy))\n"
        "atexit.register(check)\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "LOADED"
