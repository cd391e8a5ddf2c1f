"""What every Snapshots keeps. A subclass gives `snapshots_of`."""

import hashlib
from typing import Protocol

import pytest

from services.runtime.ports import SnapshotRecord, Snapshots


class SnapshotsOf(Protocol):
    """One cell's snapshots, opened anew at each call; `damage` changes a stored byte of one."""

    def open(self) -> Snapshots: ...
    def damage(self, offset: int) -> None: ...


def snapshot(offset: int, data: bytes = b"state") -> SnapshotRecord:
    return SnapshotRecord(offset, b"h" * 32, 3, 1, hashlib.sha256(data).digest(), data)


class SnapshotsContract:
    @pytest.fixture
    def snapshots_of(self) -> SnapshotsOf:
        raise NotImplementedError

    def test_none_were_saved(self, snapshots_of: SnapshotsOf) -> None:
        assert list(snapshots_of.open().load()) == []

    def test_one_comes_back_whole_however_large(self, snapshots_of: SnapshotsOf) -> None:
        saved = snapshot(7, bytes(range(256)) * 12_345)
        snapshots_of.open().save(saved)
        assert list(snapshots_of.open().load()) == [saved]

    def test_the_two_newest_are_there_newest_first(self, snapshots_of: SnapshotsOf) -> None:
        snapshots = snapshots_of.open()
        for offset in (3, 9, 20):
            snapshots.save(snapshot(offset))
        assert [found.offset for found in snapshots.load()][:2] == [20, 9]

    def test_saving_the_same_offset_again_replaces_it(self, snapshots_of: SnapshotsOf) -> None:
        snapshots = snapshots_of.open()
        snapshots.save(snapshot(5, b"a" * 1_000_000))
        snapshots.save(snapshot(5, b"b"))
        assert list(snapshots.load()) == [snapshot(5, b"b")]

    def test_a_damaged_one_is_left_out(self, snapshots_of: SnapshotsOf) -> None:
        snapshots = snapshots_of.open()
        for offset in (1, 2):
            snapshots.save(snapshot(offset, b"state %d" % offset))
        snapshots_of.damage(2)
        assert list(snapshots_of.open().load()) == [snapshot(1, b"state 1")]
