"""The reader folds what extends the chain, says why the rest is void, and stops before what it does not know."""

import pytest

from services.runtime import codec
from services.runtime.reader import LogReader
from statemachines import snapshot
from statemachines.cluster import Cluster
from tests.fakes.memory import MemoryCell, MemoryEventLog
from tests.services.runtime.write import Writer, queue

UNKNOWN_FACT = b"\x12\x05" + b"\xa2\x06\x02\x0a\x00"  # Fact{field 100: ...}


@pytest.fixture
def writer() -> Writer:
    return Writer(MemoryEventLog(MemoryCell()))


def reader_of(writer: Writer) -> LogReader:
    return LogReader(writer.log, Cluster("c"))


def test_it_reads_on_from_where_the_cluster_is(writer: Writer) -> None:
    reader = reader_of(writer)
    assert list(reader.read(timeout_s=0)) == []
    writer.open_term()
    (folded,) = reader.read(timeout_s=0)
    assert folded.accepted
    assert folded.entry.digest == writer.head == reader.cluster.head
    writer.append([queue("q")])
    assert reader.read_to_end() == 1
    assert list(reader.cluster.queues) == ["q"]


def test_it_reads_no_more_than_the_limit_at_once(writer: Writer) -> None:
    for _ in range(5):
        writer.append()
    reader = reader_of(writer)
    assert len(reader.read(timeout_s=0, limit=2)) == 2
    assert reader.cluster.offset == 1
    assert reader.read_to_end() == 3


def test_what_does_not_extend_the_chain_is_void_with_the_reason_and_changes_nothing(
    writer: Writer,
) -> None:
    writer.open_term()
    reader = reader_of(writer)
    reader.read_to_end()
    before = snapshot.digest(reader.cluster)
    writer.append([queue("a")], prev=bytes(32))
    writer.append([queue("b")], cell="other")
    writer.append([queue("c")], term=0)
    writer.log.append(b"\xff\xff")
    folded = reader.read(timeout_s=0)
    assert [f.accepted for f in folded] == [False] * 4
    reasons = [f.void for f in folded]
    assert reasons[0] == "does not extend the head"
    assert reasons[1] == "of cell other, not c"
    assert reasons[2] == "term 0 is over: the log is at term 1"
    assert reasons[3].startswith("cannot be decoded: not a Entry")
    assert snapshot.digest(reader.cluster) == before
    assert (reader.cluster.offset, reader.cluster.voided) == (4, 4)


def test_the_chain_goes_on_after_void_records(writer: Writer) -> None:
    writer.open_term()
    writer.log.append(b"garbage")
    writer.append([queue("q")])
    reader = reader_of(writer)
    assert reader.read_to_end() == 3
    assert reader.cluster.head == writer.head


def test_an_unknown_fact_that_extends_the_chain_stops_the_reader_for_good(writer: Writer) -> None:
    writer.open_term()
    writer.append_body(UNKNOWN_FACT)
    reader = reader_of(writer)
    for _ in range(2):
        with pytest.raises(codec.UnknownFactError, match="offset 1"):
            reader.read(timeout_s=0)


def test_an_unknown_fact_off_the_chain_is_as_void_as_anything(writer: Writer) -> None:
    writer.open_term()
    writer.append_body(UNKNOWN_FACT, prev=b"x" * 32)
    writer.append([queue("q")])
    reader = reader_of(writer)
    assert reader.read_to_end() == 3
    assert reader.cluster.voided == 1
    assert reader.cluster.head == writer.head


def test_a_replay_stops_before_the_entry_it_is_told(writer: Writer) -> None:
    for name in "abc":
        writer.append([queue(name)])
    third_ms = writer.at_ms
    reader = LogReader(writer.log, Cluster("c"), stop_before=lambda entry: entry.at_ms >= third_ms)
    assert reader.read_to_end() == 2
    assert reader.stopped
    assert list(reader.cluster.queues) == ["a", "b"]
    writer.append()
    assert list(reader.read(timeout_s=0)) == []
