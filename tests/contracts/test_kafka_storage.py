"""The adapters of a distributed cell keep the contracts of storage, on a real broker."""

from collections.abc import Iterator

import msgspec
import pytest

from services.runtime.adapters.kafka import KafkaEventLog
from services.runtime.adapters.kafka_blobs import KafkaBlobs
from services.runtime.adapters.kafka_snapshots import KafkaSnapshots
from services.runtime.ports import Snapshots
from tests.contracts.blobs_contract import BlobsContract, OpenBlobs
from tests.contracts.event_log_contract import EventLogContract, OpenLog
from tests.contracts.inputs_contract import REPORT_PARTITIONS, InputsContract, TopicsOf
from tests.contracts.publisher_contract import PublisherContract
from tests.contracts.snapshots_contract import SnapshotsContract, SnapshotsOf
from tests.fixtures.kafka_cell import KafkaCell, kafka_cell

pytestmark = pytest.mark.kafka


@pytest.fixture
def cell(kafka_bootstrap: str) -> Iterator[KafkaCell]:
    with kafka_cell(kafka_bootstrap, partitions={"reports": REPORT_PARTITIONS}) as made:
        yield made


class _Snapshots:
    def __init__(self, cell: KafkaCell) -> None:
        self._cell = cell

    def open(self) -> Snapshots:
        return self._cell.open(KafkaSnapshots)

    def damage(self, offset: int) -> None:
        """Write its manifest again, with the digest of other bytes."""
        snapshots = self._cell.open(KafkaSnapshots)
        found = snapshots._newest()
        assert found is not None
        _, manifest = found
        assert manifest.offset == offset
        wrong = msgspec.structs.replace(manifest, digest=b"\0" * 32)
        key = b"%d/manifest" % manifest.slot
        self._cell.write("snapshots", key, msgspec.msgpack.encode(wrong))


class TestKafkaEventLog(EventLogContract):
    @pytest.fixture
    def open_log(self, cell: KafkaCell) -> OpenLog:
        return lambda: cell.open(KafkaEventLog)


class TestKafkaInputs(InputsContract):
    @pytest.fixture
    def topics_of(self, cell: KafkaCell) -> TopicsOf:
        return cell


class TestKafkaPublisher(PublisherContract):
    @pytest.fixture
    def topics_of(self, cell: KafkaCell) -> TopicsOf:
        return cell


class TestKafkaSnapshots(SnapshotsContract):
    @pytest.fixture
    def snapshots_of(self, cell: KafkaCell) -> SnapshotsOf:
        return _Snapshots(cell)


class TestKafkaBlobs(BlobsContract):
    @pytest.fixture
    def open_blobs(self, cell: KafkaCell) -> OpenBlobs:
        return lambda: cell.open(KafkaBlobs)
