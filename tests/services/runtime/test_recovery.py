"""Recovery gives the state of the whole log, whichever snapshots there are, and passes over those it cannot use."""

import gc
import hashlib

import pytest
from msgspec.structs import replace

from services.runtime.ports import SnapshotRecord
from services.runtime.reader import LogReader
from services.runtime.recovery import recover, take_snapshot
from statemachines import snapshot
from statemachines.cluster import FOLD_VERSION, Cluster
from tests.fakes.memory import MemoryCell, MemoryEventLog, MemorySnapshots
from tests.services.runtime.write import Writer, queue


class World:
    def __init__(self) -> None:
        cell = MemoryCell()
        self.log, self.snapshots = MemoryEventLog(cell), MemorySnapshots(cell)
        self.writer = Writer(self.log)
        self.cluster = Cluster("c")

    def save(self) -> SnapshotRecord:
        LogReader(self.log, self.cluster).read_to_end()
        record = take_snapshot(self.cluster)
        self.snapshots.save(record)
        return record

    def digest(self) -> bytes:
        whole = Cluster("c")
        LogReader(self.log, whole).read_to_end()
        return snapshot.digest(whole)


@pytest.fixture
def world() -> World:
    world = World()
    world.writer.open_term()
    world.writer.append([queue("a")])
    world.save()
    world.writer.log.append(b"void")
    world.writer.append([queue("b")])
    world.save()
    world.writer.append([queue("c")])
    return world


def test_without_a_snapshot_the_whole_log_is_folded() -> None:
    world = World()
    assert recover(world.log, world.snapshots, "c").cluster.offset == -1
    world.writer.open_term()
    recovered = recover(world.log, world.snapshots, "c")
    assert (recovered.snapshot_offset, recovered.records) == (-1, 1)
    assert snapshot.digest(recovered.cluster) == world.digest()


def test_the_newest_snapshot_and_the_tail_give_the_state_of_the_whole_log(world: World) -> None:
    recovered = recover(world.log, world.snapshots, "c", track=True)
    assert (recovered.snapshot_offset, recovered.records, recovered.passed_over) == (3, 1, ())
    assert snapshot.digest(recovered.cluster) == world.digest()
    assert list(recovered.cluster.take_touched().queues) == ["c"]


def test_a_snapshot_of_another_fold_version_is_passed_over_for_an_older_one(world: World) -> None:
    newest = next(world.snapshots.load())
    world.snapshots.save(replace(newest, fold_version=FOLD_VERSION + 1))
    recovered = recover(world.log, world.snapshots, "c")
    assert recovered.snapshot_offset == 1
    assert recovered.passed_over == (
        f"snapshot at offset 3: of fold version {FOLD_VERSION + 1}, this is {FOLD_VERSION}",
    )
    assert snapshot.digest(recovered.cluster) == world.digest()


@pytest.mark.parametrize("change", [{"head": b"x" * 32}, {"offset": 99}, {"digest": b"x" * 32}])
def test_a_snapshot_that_is_not_of_this_log_is_passed_over(
    world: World, change: dict[str, object]
) -> None:
    newest = next(world.snapshots.load())
    world.snapshots.save(replace(newest, **change))
    recovered = recover(world.log, world.snapshots, "c")
    assert recovered.snapshot_offset < 99
    assert snapshot.digest(recovered.cluster) == world.digest()


def test_a_coherent_snapshot_of_another_history_of_the_same_cell_is_passed_over(
    world: World,
) -> None:
    other = World()
    other.writer.open_term()
    for name in ("x", "y", "z"):
        other.writer.append([queue(name)])
    foreign = other.save()
    world.snapshots.save(foreign)
    recovered = recover(world.log, world.snapshots, "c")
    assert (foreign.offset, recovered.snapshot_offset) == (3, 1)
    (why,) = recovered.passed_over
    assert why.startswith("snapshot at offset 3: the log holds another entry there")
    assert snapshot.digest(recovered.cluster) == world.digest()


def test_a_snapshot_at_a_void_record_is_passed_over(world: World) -> None:
    world.writer.append([queue("void")], prev=b"x" * 32)
    world.save()
    recovered = recover(world.log, world.snapshots, "c")
    assert recovered.snapshot_offset == 3
    assert snapshot.digest(recovered.cluster) == world.digest()


def test_a_snapshot_of_another_cell_is_passed_over(world: World) -> None:
    other = World()
    other.cluster = Cluster("other")
    other.writer = Writer(other.log, cell="other")
    other.writer.open_term()
    world.snapshots.save(replace(other.save(), offset=4))
    recovered = recover(world.log, world.snapshots, "c")
    assert recovered.snapshot_offset == 3
    assert "of cell other" in recovered.passed_over[0]


def test_undecodable_bytes_with_a_right_digest_are_passed_over(world: World) -> None:
    newest = take_snapshot(Cluster("c"))
    broken = replace(newest, offset=4, data=b"x", digest=hashlib.sha256(b"x").digest())
    world.snapshots.save(broken)
    recovered = recover(world.log, world.snapshots, "c")
    assert recovered.snapshot_offset == 3
    assert len(recovered.passed_over) == 1


def test_the_collector_runs_again_afterwards_and_leaves_the_state_alone(world: World) -> None:
    recover(world.log, world.snapshots, "c")
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
