"""Health workers as processes on a real broker: killed, frozen, replaced, and fed with what a broker may bring."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from compose.local.stack import Stack
from services.runtime.exits import ExitCode
from tests.fixtures.kafka_cell import KafkaCell, kafka_cell
from tests.services.health.farm import Farm, Worker, farm

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]
NODES: Final = 120
LOST_S: Final = 10.5
STALL_S: Final = 40.0


class Staff:
    """Workers of one cell, ended with the test."""

    def __init__(self, cell: KafkaCell, folder: Path, stack: ExitStack) -> None:
        self._cell, self._folder, self._stack = cell, folder, stack

    def hire(self, name: str, *flags: str) -> Worker:
        worker = Worker(self._cell, self._folder, name, *flags)
        self._stack.callback(worker.kill)
        return worker


@pytest.fixture
def cell(kafka_bootstrap: str) -> Iterator[KafkaCell]:
    with kafka_cell(kafka_bootstrap, partitions={"beats": 2}) as made:
        yield made


@pytest.fixture
def nodes(cell: KafkaCell) -> Iterator[Farm]:
    with farm(cell, NODES) as made:
        yield made


@pytest.fixture
def staff(cell: KafkaCell, tmp_path: Path) -> Iterator[Staff]:
    with ExitStack() as stack:
        yield Staff(cell, tmp_path, stack)


def freeze(what: Callable[[signal.Signals], None], seconds: float) -> None:
    what(signal.SIGSTOP)
    time.sleep(seconds)  # The stall itself.
    what(signal.SIGCONT)


def test_workers_that_are_killed_lose_no_node_and_invent_no_verdict(
    nodes: Farm, staff: Staff
) -> None:
    first = staff.hire("first")
    nodes.until("the first to judge", lambda: first.active)
    second = staff.hire("second")
    nodes.until("the second to be ready", lambda: second.gauge("tidemill_health_active") == 0)
    died = nodes.die("n7")
    nodes.until("n7 to be lost", lambda: "n7" in nodes.lost)
    assert nodes.lost["n7"] - died >= LOST_S - 2.5
    assert first.active, "a member that joins takes nothing from the one that judges"

    first.kill()
    nodes.die("n8")
    nodes.until("the second to judge", lambda: second.active)
    nodes.until("n8 to be lost", lambda: "n8" in nodes.lost)

    third = staff.hire("third")
    nodes.until("the third to be ready", lambda: third.gauge("tidemill_health_active") == 0)
    second.send(signal.SIGTERM)
    assert second.process.wait(60) == ExitCode.STOPPED
    left = time.monotonic()
    nodes.until("the third to judge", lambda: third.active)
    print(f"a member that leaves is replaced within {time.monotonic() - left:.1f} s")
    nodes.die("n9")
    nodes.until("n9 to be lost", lambda: "n9" in nodes.lost)
    assert set(nodes.lost) == nodes.named("node_gone") == {"n7", "n8", "n9"}
    assert nodes.named("node_suspect") == {"n7", "n8", "n9"}
    assert nodes.named("node_back") == set()


def test_batches_that_come_twice_and_out_of_order_are_harmless(nodes: Farm, staff: Staff) -> None:
    nodes.storm = True
    worker = staff.hire("only")
    nodes.until("the worker to judge", lambda: worker.active)
    nodes.cell.write("beats", b"", b"\xff not a batch")
    nodes.cell.write("progress", b"", b"\xff not progress")
    nodes.die("n1")
    nodes.until("n1 to be lost", lambda: "n1" in nodes.lost)
    nodes.until(
        "both records to be counted",
        lambda: sum(
            worker.gauge(f'tidemill_telemetry_unreadable_total{{topic="{topic}"}}') == 1
            for topic in ("beats", "progress")
        ) == 2,
    )  # fmt: skip
    assert nodes.named("node_suspect") == {"n1"}


def test_stalls_of_forty_seconds_lose_no_node(
    launch_stack: Callable[[int, int], Stack], tmp_path: Path
) -> None:
    """Of the worker, of the broker, and of the gateway; and who is dead after that is found."""
    stack = launch_stack(1, 0)
    with (
        kafka_cell(stack.layout.bootstrap, partitions={"beats": 2}, answer_timeout_s=5.0) as cell,
        farm(cell, NODES) as nodes,
        ExitStack() as ending,
    ):
        worker = Staff(cell, tmp_path, ending).hire("only")
        nodes.until("the worker to judge", lambda: worker.active)
        freeze(worker.send, STALL_S)
        nodes.until("the worker to judge again", lambda: worker.active)
        broker = stack.layout.brokers[0].name
        stack.pause(broker)
        time.sleep(STALL_S)  # The stall itself.
        stack.resume(broker)
        nodes.until("the worker to judge again", lambda: worker.active)
        nodes.deaf.set()
        time.sleep(STALL_S)  # The stall itself.
        nodes.deaf.clear()
        assert nodes.named("node_gone") == set()
        assert worker.process.poll() is None
        nodes.die("n3")
        nodes.until("n3 to be lost", lambda: "n3" in nodes.lost)
        assert set(nodes.lost) == {"n3"}


def test_dead_nodes_are_lost_within_the_bounds(nodes: Farm, staff: Staff) -> None:
    """One after the other, at moments that have nothing to do with their beats; fewer at once than the breaker allows."""
    worker = staff.hire("only", "--breaker-least", "20")
    nodes.until("the worker to judge", lambda: worker.active)
    died: dict[str, float] = {}
    for i in range(16):
        died[f"n{i}"] = nodes.die(f"n{i}")
        time.sleep(0.33)  # Sixteen phases of the beat.
    nodes.until("all of them to be lost", lambda: set(nodes.lost) == set(died))
    took_s = sorted(nodes.lost[name] - died[name] for name in died)
    p50_s, p99_s = took_s[len(took_s) // 2], took_s[-1]
    print(f"silent to lost: p50 {p50_s:.2f} s, p99 {p99_s:.2f} s")
    # That the median is below 10 s is for `bench detect` to show, on a machine of its own.
    assert p50_s <= 15
    assert p99_s <= 20
    assert nodes.named("node_gone") == set(died)
