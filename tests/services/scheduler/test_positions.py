"""Each input is decided once, and the entry says which: positions, ordinals, entries that are split."""

from __future__ import annotations

import msgspec

from services.runtime.ports import INPUT_BYTES_MAX, InputRecord
from services.scheduler.core import LeaderCore
from statemachines import facts
from statemachines.entry import Entry, Position
from tests.services.scheduler.cell import POLICY, Cell, spec
from tidemill.v1 import requests_pb2


def entries(cell: Cell) -> list[Entry]:
    return [each.entry for each in cell.steps[-1].sealed]


def causes(entry: Entry) -> list[tuple[str, int]]:
    return [(type(each.fact).__name__, each.input) for each in entry.facts]


def test_ranges_are_in_the_order_taken_and_ordinals_count_through_them() -> None:
    cell = Cell()
    cell.attach("n1")
    cell.attach("n2")
    cell.raw("verdicts", b"\x00")
    cell.attach("n3")
    cell.submit("a")
    cell.step()
    (entry,) = entries(cell)
    assert entry.consumed == (
        Position("reports", 0, 0, 2),
        Position("verdicts", 0, 0, 1),
        Position("reports", 0, 2, 3),
        Position("requests", 0, 0, 1),
    )
    assert causes(entry) == [
        ("NodeJoined", 1), ("NodeJoined", 2), ("InputParked", 3), ("NodeJoined", 4), ("JobAdmitted", 5),
        ("GangPlaced", 0),
    ]  # fmt: skip


def test_offsets_that_a_broker_left_out_are_counted_through() -> None:
    cell = Cell()
    cell.attach("n1")
    (record,) = cell.take_inputs()
    cell.give([msgspec.structs.replace(record, offset=5)])
    cell.step()
    (entry,) = entries(cell)
    assert entry.consumed == (Position("reports", 0, 0, 6),)
    assert causes(entry) == [("NodeJoined", 6)]


def test_partitions_have_positions_of_their_own() -> None:
    cell = Cell()
    cell.raw("reports", b"\x00", partition=1)
    cell.raw("reports", b"\x00", partition=0)
    cell.step()
    assert cell.cluster.positions == {("reports", 1): 1, ("reports", 0): 1}


def test_an_input_that_changes_nothing_still_moves_its_position() -> None:
    cell = Cell()
    cell.gone("n9")
    assert cell.step() == []
    assert cell.cluster.positions == {("verdicts", 0): 1}


def test_an_input_is_never_decided_twice() -> None:
    cell = Cell()
    cell.submit("a")
    inputs = cell.take_inputs()
    cell.give([*inputs, *inputs])
    cell.step()
    cell.give(inputs)
    assert cell.step() == []
    assert (len(cell.cluster.jobs), cell.weather()) == (1, {"decided_before": 1})


def test_nothing_to_do_makes_no_entry() -> None:
    cell = Cell()
    assert cell.core.step([], cell.now_ms) is None
    assert cell.core.next_due_ms(cell.now_ms) is None


def test_a_step_that_outgrows_an_entry_is_split_between_facts() -> None:
    cell = Cell()
    for i in range(400):
        cell.raw("reports", bytes([255]) + bytes(4095))
        cell.submit(f"j{i}")
    cell.step()
    split = entries(cell)
    assert len(split) > 1
    assert all(len(sealed.value) < 1_000_000 for sealed in cell.steps[-1].sealed)
    assert [entry.prev for entry in split[1:]] == [entry.digest for entry in split[:-1]]
    reports = [
        position for entry in split for position in entry.consumed if position.topic == "reports"
    ]
    assert [p.first_offset for p in reports] == list(range(400))
    assert len(cell.cluster.jobs) == 400


def test_an_input_whose_facts_need_several_entries_moves_with_the_last() -> None:
    cell = Cell()
    cell.submit("a", spec(held=True), count=20_000)
    cell.step()
    key = cell.ask(requests_pb2.CancelJob(job="a", message="m" * 40))
    cell.step()
    first, *_, last = entries(cell)
    assert len(entries(cell)) > 1
    assert first.consumed == ()
    assert last.consumed == (Position("requests", 0, 1, 2),)
    assert {each.input for each in first.facts} == {1}
    answered = [e for e in last.facts if isinstance(e.fact, facts.RequestAccepted)]
    assert [each.input for each in answered] == [1]
    assert cell.answer(key) == ""


def test_dying_between_the_entries_of_one_input_repeats_it_to_the_same_end() -> None:
    cell = Cell()
    cell.submit("a", spec(held=True), count=20_000)
    cell.step()
    key = cell.ask(requests_pb2.CancelJob(job="a", message="m" * 40))
    inputs = cell.take_inputs()
    step = cell.core.step(inputs, cell.now_ms)
    assert step is not None and len(step.sealed) > 1
    cell.append(step.sealed[0].value)  # And then the leader dies.
    assert key not in cell.reader.answers
    cell.take_over()
    cell.give(inputs)
    cell.step()
    assert cell.answer(key) == ""
    assert {job.state for job in cell.cluster.jobs.values()} == {"cancelled"}


def test_what_is_due_is_bounded_per_step_and_goes_on_at_once() -> None:
    cell = Cell()
    cell.submit("a", spec(held=True), count=5_000)
    cell.ask(requests_pb2.CancelJob(job="a"))
    cell.step()
    retired = cell.step(after_ms=POLICY.retire_after_ms)
    assert len(retired) == 2_000
    assert cell.core.next_due_ms(cell.now_ms) == cell.cluster.at_ms
    assert len(cell.run()) == 3_000
    assert cell.cluster.jobs == {}


def test_replaying_the_log_decides_the_same() -> None:
    """Another core given the same inputs at the same times writes the same bytes."""
    first, second = Cell(), Cell()
    for cell in (first, second):
        cell.nodes("n1", "n2")
        for i in range(20):
            cell.submit(f"j{i}", spec(devices=3))
        cell.gone("n1")
        cell.run(after_ms=100_000)
    assert [record.value for record in first.log] == [record.value for record in second.log]


def test_a_core_takes_only_what_it_reads() -> None:
    cell = Cell()
    assert isinstance(cell.core, LeaderCore)
    record = InputRecord("requests", 0, 0, b"", b"x" * INPUT_BYTES_MAX)
    cell.give([record])
    (parked,) = cell.step()
    assert isinstance(parked, facts.InputParked)
