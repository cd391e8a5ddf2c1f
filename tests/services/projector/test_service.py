"""`tidemilld projector` on an embedded cell: killed, restarted, asked; every fact is there once."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.runtime.exits import ExitCode
from services.runtime.ports import Outgoing
from services.runtime.settings import CellSettings
from services.runtime.wiring import open_cell
from tests.contracts.test_embedded_facts import SqliteFactsOf
from tests.services.projector.process import Process, await_that, grow_and_kill, wanted
from tests.statemachines.golden import FOLDER, read
from tests.statemachines.world import CELL

TOUR = read(FOLDER / "tour.bin")
HISTORY = read(FOLDER / "history-7.bin")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def flags(directory: Path) -> list[str]:
    return ["--cell", CELL, "--directory", str(directory)]


def test_a_projector_that_is_killed_again_and_again_stores_every_fact_once(
    tmp_path: Path, stack: ExitStack
) -> None:
    cell = open_cell(CellSettings(cell=CELL, directory=str(tmp_path)))
    stack.callback(cell.close)
    log = cell.event_log()
    stack.callback(log.close)
    process = grow_and_kill(log, HISTORY, flags(tmp_path), kills=5, seed=1)
    stack.callback(process.kill)
    await_that(process.is_ready, "it has caught up")
    facts = SqliteFactsOf(tmp_path / "cell.db", stack).facts()
    assert facts == wanted(CELL, HISTORY, range(len(HISTORY)))
    metrics = process.get("/metrics")
    assert f"tidemill_projector_log_offset {float(len(HISTORY))}" in metrics
    assert process.stop() == ExitCode.STOPPED


def test_a_parked_input_is_copied_whole_while_its_topic_has_it(
    tmp_path: Path, stack: ExitStack
) -> None:
    """The tour parks requests/0 at an offset; what lies there is copied, else what the fact kept."""
    cell = open_cell(CellSettings(cell=CELL, directory=str(tmp_path)))
    stack.callback(cell.close)
    log, publisher = cell.event_log(), cell.publisher()
    stack.callback(log.close)
    stack.callback(publisher.close)
    for value in TOUR:
        log.append(value)
    process = Process(flags(tmp_path))
    stack.callback(process.kill)
    await_that(process.is_ready, "it has caught up")
    held = SqliteFactsOf(tmp_path / "cell.db", stack)
    (kept,) = held.parked()
    assert (kept.whole, kept.topic) == (False, "requests")
    assert process.said("input_parked")[0]["reason"] == kept.reason
    assert process.stop() == ExitCode.STOPPED
    publisher.publish([Outgoing("requests", b"k", b"%d" % i) for i in range(kept.position + 1)])
    empty(tmp_path / "cell.db")
    again = Process(flags(tmp_path))
    stack.callback(again.kill)
    await_that(again.is_ready, "it has caught up")
    (whole,) = held.parked()
    assert (whole.whole, whole.key, whole.value) == (True, b"k", b"%d" % kept.position)
    assert held.facts() == wanted(CELL, TOUR, range(len(TOUR)))


def empty(path: Path) -> None:
    """Facts may be emptied at any time: they are made again."""
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM facts")
        connection.execute("DELETE FROM parked")
    connection.close()


def test_another_log_under_the_same_facts_ends_it_with_what_to_do(
    tmp_path: Path, stack: ExitStack
) -> None:
    cell = open_cell(CellSettings(cell=CELL, directory=str(tmp_path)))
    stack.callback(cell.close)
    log = cell.event_log()
    stack.callback(log.close)
    for value in TOUR:
        log.append(value)
    first = Process(flags(tmp_path))
    stack.callback(first.kill)
    await_that(first.is_ready, "it has caught up")
    first.stop()
    with sqlite3.connect(tmp_path / "cell.db") as connection:
        connection.execute("UPDATE facts SET digest = zeroblob(32)")
    connection.close()
    second = Process(flags(tmp_path))
    assert second.end() == ExitCode.LOG_DAMAGED
    assert any("projected from another log" in str(line["event"]) for line in second.lines)
