"""The first signal asks to drain, the second ends at once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from services.runtime.shutdown import SIGNALS, Shutdown


@pytest.fixture
def shutdown() -> Iterator[Shutdown]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    shutdown = Shutdown()
    shutdown.install()
    yield shutdown
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_once_and_wakes_everyone(shutdown: Shutdown, number: signal.Signals) -> None:
    woken: list[str] = []
    shutdown.on_ask(lambda: woken.append("before"))
    assert not shutdown.wait(0)
    os.kill(os.getpid(), number)
    assert shutdown.wait(30)
    assert shutdown.asked
    shutdown.ask()
    shutdown.on_ask(lambda: woken.append("after"))
    assert woken == ["before", "after"]


def test_a_second_signal_ends_at_once() -> None:
    code = (
        "from services.runtime.shutdown import Shutdown; import sys, time\n"
        "shutdown = Shutdown(); shutdown.install(); print('up', flush=True)\n"
        "shutdown.wait(); print('draining', flush=True); time.sleep(300)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.stdout.readline() == "draining\n"
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
