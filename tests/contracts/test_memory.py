"""The in-memory fakes keep what the real adapters keep."""

import msgspec
import pytest

from services.runtime.ports import Inputs, Publisher, Snapshots
from tests.contracts.blobs_contract import BlobsContract, OpenBlobs
from tests.contracts.event_log_contract import EventLogContract, OpenLog
from tests.contracts.inputs_contract import REPORT_PARTITIONS, InputsContract, TopicsOf
from tests.contracts.leadership_contract import LeadershipContract, Stand
from tests.contracts.publisher_contract import PublisherContract
from tests.contracts.snapshots_contract import SnapshotsContract, SnapshotsOf
from tests.fakes.memory import (
    MemoryBlobs,
    MemoryCell,
    MemoryEventLog,
    MemoryInputs,
    MemoryLeadership,
    MemoryPublisher,
    MemorySnapshots,
)


class _Topics:
    def __init__(self) -> None:
        self._cell = MemoryCell({"reports": REPORT_PARTITIONS})
        self.drop = self._cell.drop

    def inputs(self) -> Inputs:
        return MemoryInputs(self._cell)

    def publisher(self) -> Publisher:
        return MemoryPublisher(self._cell)


class _Snapshots:
    def __init__(self) -> None:
        self._cell = MemoryCell()

    def open(self) -> Snapshots:
        return MemorySnapshots(self._cell)

    def damage(self, offset: int) -> None:
        record = self._cell.snapshots[offset]
        self._cell.snapshots[offset] = msgspec.structs.replace(record, data=b"damaged")


class TestMemoryEventLog(EventLogContract):
    @pytest.fixture
    def open_log(self) -> OpenLog:
        cell = MemoryCell()
        return lambda: MemoryEventLog(cell)


class TestMemoryInputs(InputsContract):
    @pytest.fixture
    def topics_of(self) -> TopicsOf:
        return _Topics()


class TestMemoryPublisher(PublisherContract):
    @pytest.fixture
    def topics_of(self) -> TopicsOf:
        return _Topics()


class TestMemorySnapshots(SnapshotsContract):
    @pytest.fixture
    def snapshots_of(self) -> SnapshotsOf:
        return _Snapshots()


class TestMemoryBlobs(BlobsContract):
    @pytest.fixture
    def open_blobs(self) -> OpenBlobs:
        cell = MemoryCell()
        return lambda: MemoryBlobs(cell)


class TestMemoryLeadership(LeadershipContract):
    @pytest.fixture
    def stand(self) -> Stand:
        cell = MemoryCell()
        return lambda: MemoryLeadership(cell)
