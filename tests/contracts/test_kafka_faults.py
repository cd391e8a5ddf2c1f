"""The storage ports on a real broker that freezes, dies, loses what it had, or is cut off between a send and its answer."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compose.local.stack import Stack
from services.runtime import codec
from services.runtime.adapters.kafka import KafkaEventLog, KafkaInputs
from services.runtime.ports import (
    DamagedError,
    EventLog,
    InputGapError,
    InputRecord,
    LogRecord,
    Outgoing,
    PortError,
)
from services.runtime.reader import Folded, LogReader
from statemachines.cluster import FOLD_VERSION, Cluster
from statemachines.entry import Recorded
from statemachines.facts import TermOpened
from tests.fixtures.fault_proxy import FaultProxy, Latency, ResetPeer, Timeout, Toxic
from tests.fixtures.kafka_cell import KafkaCell, kafka_cell
from tests.fixtures.stack import _launched

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

SHORT_S = 2.0
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One broker of our own, to be hurt."""
    with _launched(tmp_path_factory.mktemp("kafka"), brokers=1, etcd=0) as stack:
        yield stack


@pytest.fixture
def proxy(broker: Stack) -> Iterator[FaultProxy]:
    """What stands before the broker's outer door; a client that comes through it knows no other way."""
    (only,) = broker.layout.brokers
    with FaultProxy(upstream_port=only.outer, listen_port=only.outer_advertised) as proxy:
        yield proxy


@pytest.fixture
def cell(broker: Stack) -> Iterator[KafkaCell]:
    """A cell on the broker, healthy when the test begins."""
    broker.up()
    with kafka_cell(broker.layout.bootstrap, keep=True, answer_timeout_s=DEADLINE_S) as made:
        yield made


def through(proxy: FaultProxy, cell: KafkaCell, answer_timeout_s: float = SHORT_S) -> KafkaEventLog:
    """The cell's log as one sees it who comes through the proxy."""
    log = cell.log(bootstrap=f"127.0.0.1:{proxy.port}", answer_timeout_s=answer_timeout_s)
    log.prepare_to_append()
    return log


def await_that(condition: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < DEADLINE_S, f"not within {DEADLINE_S} s: {what}"
        threading.Event().wait(0.02)
    return time.monotonic() - began


def tried(work: Callable[[], object]) -> bool:
    """Whether it worked; bad weather is expected meanwhile."""
    try:
        work()
    except PortError:
        return False
    return True


class Leader:
    """Appends one entry as a leader does: an unknown outcome is settled by reading."""

    def __init__(self, cell: KafkaCell, log: EventLog) -> None:
        self.cluster = Cluster(cell.settings.cell)
        self.reader = LogReader(cell.log(), self.cluster)
        self.log = log
        self.folded: list[Folded] = []

    def opening(self) -> bytes:
        body = codec.encode_body([], [Recorded(TermOpened(1, "leader", "nonce", FOLD_VERSION))])
        cluster = self.cluster
        return codec.encode_entry(cell=cluster.cell, term=1, prev=cluster.head, at_ms=1, body=body)

    def read(self) -> list[bool]:
        """Read to the end; of each record so far, whether it was accepted."""
        while folded := self.reader.read(timeout_s=0):
            self.folded += folded
        return [record.accepted for record in self.folded]


# --- unknown outcome: cut off between the send and the acknowledgement


@pytest.mark.parametrize(
    ("toxic", "direction", "stored"),
    [
        pytest.param(Timeout(), "downstream", [True], id="applied"),
        pytest.param(Timeout(), "upstream", [], id="not applied"),
    ],
)
def test_an_append_of_unknown_outcome_ends_in_one_accepted_entry(
    cell: KafkaCell, proxy: FaultProxy, toxic: Toxic, direction: str, stored: list[bool]
) -> None:
    log = through(proxy, cell)
    log.append(b"a foreign record, so that the producer has its place")
    leader = Leader(cell, log)
    value = leader.opening()
    proxy.add(toxic, direction)  # type: ignore[arg-type]
    with pytest.raises(PortError, match=r"not acknowledged within 2 s.*unknown"):
        log.append(value)
    proxy.heal()
    proxy.cut()
    assert leader.read() == [False, *stored]
    if not stored:
        await_that(lambda: tried(lambda: log.append(value)), "the append is tried again")
    assert leader.read() == [False, True]
    assert leader.cluster.term == 1


def test_a_record_that_arrives_after_it_was_given_up_and_sent_again_is_void(
    cell: KafkaCell, proxy: FaultProxy
) -> None:
    log = through(proxy, cell)
    log.append(b"a foreign record, so that the producer has its place")
    leader = Leader(cell, log)
    value = leader.opening()
    proxy.add(Latency(2 * SHORT_S * 1000), "upstream")
    with pytest.raises(PortError, match="unknown"):
        log.append(value)
    assert leader.read() == [False]
    cell.log().append(value)  # The leader tries again, while the first is still on its way.
    await_that(lambda: len(leader.read()) == 3, "the late one arrives")
    assert leader.read() == [False, True, False]
    assert leader.cluster.voided == 2


def test_connections_that_break_within_the_wait_store_a_record_once(
    cell: KafkaCell, proxy: FaultProxy
) -> None:
    log = through(proxy, cell, answer_timeout_s=DEADLINE_S)
    log.append(b"first")
    proxy.add(ResetPeer(), "downstream")
    before = proxy.passed["upstream"]
    thread = threading.Thread(target=lambda: log.append(b"once"))
    thread.start()
    # It is sent whole and its answer is lost, more than once: each time it is sent again.
    await_that(lambda: proxy.passed["upstream"] > before + 2_000, "it is sent again and again")
    proxy.heal()
    thread.join(DEADLINE_S)
    values = [record.value for record in cell.log().read(0, limit=10, timeout_s=DEADLINE_S)]
    assert values == [b"first", b"once"]


# --- a broker that stands still, dies, comes back


def test_a_frozen_broker_is_said_and_work_goes_on_when_it_thaws(
    broker: Stack, cell: KafkaCell
) -> None:
    log = cell.log(answer_timeout_s=SHORT_S)
    publisher = cell.publisher(answer_timeout_s=SHORT_S)
    log.append(b"before")
    publisher.publish([Outgoing("requests", b"k", b"before")])
    assert log.read(1, limit=1, timeout_s=0) == []
    broker.pause("kafka-1")
    with pytest.raises(PortError, match=r"not acknowledged within 2 s.*try again"):
        log.append(b"during")
    with pytest.raises(PortError, match=r"not acknowledged within 2 s"):
        publisher.publish([Outgoing("requests", b"k", b"during")])
    with pytest.raises(PortError):
        log.read(1, limit=1, timeout_s=0)  # Never empty: nobody has seen the end.
    broker.resume("kafka-1")
    await_that(lambda: tried(lambda: log.append(b"after")), "appending goes on")
    await_that(
        lambda: tried(lambda: publisher.publish([Outgoing("requests", b"k", b"after")])),
        "publishing goes on",
    )
    stored = cell.log()
    values: list[bytes] = []
    while found := stored.read(len(values), limit=10, timeout_s=0):
        values += [record.value for record in found]
    assert values[0] == b"before"
    assert values[-1] == b"after"
    # What was on its way when we stopped waiting may be there, as the port says; at most once here.
    assert len(values) <= 3


def test_what_was_acknowledged_survives_a_killed_broker_and_ports_go_on_by_themselves(
    broker: Stack, cell: KafkaCell
) -> None:
    log = cell.log(answer_timeout_s=SHORT_S)
    reader = cell.log(answer_timeout_s=SHORT_S)
    inputs = cell.inputs(answer_timeout_s=SHORT_S)
    acknowledged = [b"%d" % i for i in range(50)]
    for value in acknowledged:
        log.append(value)
    assert len(reader.read(0, limit=100, timeout_s=DEADLINE_S)) > 0
    cell.publisher().publish([Outgoing("requests", b"k", b"v")])
    assert len(inputs.read({("requests", 0): 0}, limit=9, timeout_s=DEADLINE_S)) == 1
    broker.kill("kafka-1")
    with pytest.raises(PortError):
        log.append(b"while it is dead")
    assert inputs.read({("requests", 0): 1}, limit=9, timeout_s=0.1) == []
    broker.start("kafka-1")
    broker.wait_healthy()
    took_s = await_that(lambda: tried(lambda: log.append(b"alive")), "appending goes on")
    print(f"appended {took_s:.1f} s after the broker served again")
    values: list[bytes] = []
    offset = 0
    while not values or values[-1] != b"alive":
        found = reader.read(offset, limit=100, timeout_s=DEADLINE_S)
        values += [record.value for record in found]
        offset = found[-1].offset + 1
    assert [value for value in values if value != b"while it is dead"] == [*acknowledged, b"alive"]
    cell.publisher().publish([Outgoing("requests", b"k", b"w")])
    (record,) = inputs.read({("requests", 0): 1}, limit=9, timeout_s=DEADLINE_S)
    assert record.value == b"w"


# --- what is gone


def test_a_topic_made_anew_is_a_gap_for_inputs_and_damage_for_the_log(cell: KafkaCell) -> None:
    log, inputs = cell.log(), cell.inputs()
    for i in range(5):
        log.append(b"%d" % i)
    cell.publisher().publish([Outgoing("requests", b"k", b"%d" % i) for i in range(5)])
    assert len(inputs.read({("requests", 0): 0}, limit=9, timeout_s=DEADLINE_S)) == 5
    for topic in ("requests", "log"):
        cell.delete(topic)
    await_that(lambda: tried(cell.make), "the topics are made anew")
    for fresh in (inputs, cell.inputs()):
        with pytest.raises(InputGapError, match="made anew") as caught:
            read_until_raised(fresh, {("requests", 0): 5})
        assert (caught.value.position, caught.value.oldest) == (5, 0)
    for reader in (log, cell.log()):
        with pytest.raises(DamagedError, match=r"ends at 0, but 5 .*made anew.*restore"):
            reader.read(5, limit=1, timeout_s=DEADLINE_S)


def read_until_raised(inputs: KafkaInputs, positions: dict[tuple[str, int], int]) -> None:
    """A client hears of what became of a topic only when it asks for metadata again."""
    for _ in range(50):
        assert inputs.read(positions, limit=9, timeout_s=0.2) == []


def test_entries_that_retention_took_are_damage_and_never_passed_over(cell: KafkaCell) -> None:
    log = cell.log()
    for i in range(5):
        log.append(b"%d" % i)
    cell.drop("log", 0, 3)
    with pytest.raises(DamagedError, match=r"entries 1\.\.2 are gone.*tidemilld topics check"):
        cell.log().read(1, limit=9, timeout_s=DEADLINE_S)
    assert cell.log().read(3, limit=9, timeout_s=DEADLINE_S)[0].value == b"3"


def test_a_topic_that_is_not_there_says_how_to_make_it(cell: KafkaCell) -> None:
    cell.delete("requests")
    await_that(lambda: "requests" not in _topics(cell), "it is deleted")
    with pytest.raises(PortError, match="tidemilld topics apply"):
        cell.inputs(answer_timeout_s=SHORT_S).partitions("requests")
    with pytest.raises(PortError, match="tidemilld topics apply"):
        cell.publisher(answer_timeout_s=SHORT_S).publish([Outgoing("requests", b"k", b"v")])
    with pytest.raises(PortError, match="tidemilld topics apply"):
        read_until_raised(cell.inputs(), {("requests", 0): 0})


def _topics(cell: KafkaCell) -> set[str]:
    prefix = f"{cell.settings.cell}."
    return {name.removeprefix(prefix) for name in cell.admin.list_topics(timeout=10).topics}


@pytest.mark.parametrize("topic", ["log", "requests"])
def test_bytes_that_rotted_on_the_brokers_disk_are_damage_and_never_passed_over(
    broker: Stack, cell: KafkaCell, topic: str
) -> None:
    for value in (b"first", b"rotten" * 100, b"last"):
        cell.write(topic, b"k", value)
    broker.terminate("kafka-1")
    (segment,) = (broker.folder("kafka-1") / "data" / f"{cell.name(topic)}-0").glob("*.log")
    stored = segment.read_bytes()
    segment.write_bytes(stored.replace(b"rotten" * 100, b"rotten" * 99 + b"Rotten"))
    broker.start("kafka-1")
    broker.wait_healthy()
    log, inputs = cell.log(), cell.inputs()

    def read(at: int) -> Sequence[LogRecord | InputRecord]:
        if topic == "log":
            return log.read(at, limit=9, timeout_s=5.0)
        return inputs.read({(topic, 0): at}, limit=9, timeout_s=5.0)

    for _ in range(2):
        with pytest.raises(DamagedError, match="not what was written"):
            read_all_of(read)


def read_all_of(read: Callable[[int], Sequence[LogRecord | InputRecord]]) -> None:
    """Read until nothing comes."""
    at = 0
    while found := read(at):
        assert b"Rotten" not in found[-1].value
        at = found[-1].offset + 1


# --- foreign records, sizes, lag


def test_foreign_records_are_handed_on_as_they_are(cell: KafkaCell) -> None:
    """What they mean, or that they mean nothing, is the leader's business."""
    garbage = [(None, b"\xff\xfe"), (b"k", None), (b"", b""), (b"k", b"\x00" * 900_000)]
    for key, value in garbage:
        cell.write("requests", key, value)
    inputs = cell.inputs()
    found: list[tuple[bytes, bytes]] = []
    while len(found) < len(garbage):
        records = inputs.read({("requests", 0): len(found)}, limit=9, timeout_s=DEADLINE_S)
        found += [(record.key, record.value) for record in records]
    assert found == [(key or b"", value or b"") for key, value in garbage]


def in_transaction(cell: KafkaCell, topic: str, values: list[bytes], *, commit: bool) -> None:
    """Write as a foreign program with transactions would: markers take offsets, and an abort leaves records behind."""
    name = f"{cell.settings.cell}-{commit}"
    settings = {"bootstrap.servers": cell.settings.bootstrap, "transactional.id": name}
    producer = Producer({**settings, "log_level": 0})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(cell.name(topic), value, partition=0)
    producer.flush(DEADLINE_S)
    if commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.abort_transaction(DEADLINE_S)


def test_offsets_with_holes_are_no_gap_and_aborted_inputs_are_not_seen(cell: KafkaCell) -> None:
    in_transaction(cell, "requests", [b"a", b"b"], commit=True)
    in_transaction(cell, "requests", [b"never"], commit=False)
    inputs = cell.inputs()
    found = list(inputs.read({("requests", 0): 0}, limit=9, timeout_s=DEADLINE_S))
    assert [(record.offset, record.value) for record in found] == [(0, b"a"), (1, b"b")]
    assert inputs.end("requests", 0) == 5
    assert inputs.read({("requests", 0): 2}, limit=9, timeout_s=0.2) == []
    cell.publisher().publish([Outgoing("requests", b"k", b"c")])
    (record,) = inputs.read({("requests", 0): 2}, limit=9, timeout_s=DEADLINE_S)
    assert (record.offset, record.value) == (5, b"c")
    (again,) = cell.inputs().read({("requests", 0): 3}, limit=9, timeout_s=DEADLINE_S)
    assert again == record


def test_a_foreign_transaction_neither_hides_nor_stops_the_log(cell: KafkaCell) -> None:
    """What it leaves is void by the chain; its markers are holes, and the end is seen behind them."""
    log = cell.log()
    log.append(b"before")
    in_transaction(cell, "log", [b"foreign"], commit=False)
    found = log.read(0, limit=9, timeout_s=DEADLINE_S)
    assert found[0].value == b"before"
    at = 2
    assert log.read(at, limit=9, timeout_s=0) == []
    assert cell.log().read(at, limit=9, timeout_s=0) == []
    log.append(b"after")
    assert [record.value for record in log.read(at, limit=9, timeout_s=DEADLINE_S)] == [b"after"]


def test_one_record_that_is_too_large_is_refused_and_others_go_on(cell: KafkaCell) -> None:
    publisher = cell.publisher()
    with pytest.raises(PortError, match="MSG_SIZE_TOO_LARGE"):
        publisher.publish([Outgoing("requests", b"k", bytes(2_000_000))])
    publisher.publish([Outgoing("requests", b"k", b"small")])
    (record,) = cell.inputs().read({("requests", 0): 0}, limit=9, timeout_s=DEADLINE_S)
    assert record.value == b"small"


def test_positions_show_as_lag_of_an_ordinary_group(cell: KafkaCell) -> None:
    inputs = cell.open(lambda told: KafkaInputs(told, show_every_s=0), client="scheduler")
    cell.publisher().publish([Outgoing("requests", b"k", b"%d" % i) for i in range(5)])
    inputs.read({("requests", 0): 2}, limit=9, timeout_s=DEADLINE_S)
    group = f"{cell.settings.cell}.scheduler"
    place = TopicPartition(cell.name("requests"), 0)

    def shown() -> int:
        wanted = [ConsumerGroupTopicPartitions(group, [place])]
        (future,) = cell.admin.list_consumer_group_offsets(wanted).values()
        return int(future.result(10).topic_partitions[0].offset)

    await_that(lambda: shown() == 2, "the position is shown")


# --- three brokers


def test_appending_goes_on_when_the_broker_that_leads_the_log_is_killed(
    fault_stack: Stack,
) -> None:
    with kafka_cell(fault_stack.layout.bootstrap, answer_timeout_s=20.0) as cell:
        log = cell.log()
        acknowledged = [b"%d" % i for i in range(20)]
        for value in acknowledged:
            log.append(value)
        admin = AdminClient({"bootstrap.servers": fault_stack.layout.bootstrap, "log_level": 0})
        leads = admin.list_topics(cell.name("log"), timeout=10).topics[cell.name("log")]
        fault_stack.kill(f"kafka-{leads.partitions[0].leader}")
        took_s = await_that(lambda: tried(lambda: log.append(b"after")), "another leads")
        print(f"appended {took_s:.1f} s after the kill of the partition's leader")
        values: list[bytes] = []
        while len(values) < 21:
            found = cell.log().read(len(values), limit=100, timeout_s=DEADLINE_S)
            values += [record.value for record in found]
        assert values[:20] == acknowledged
        assert set(values[20:]) == {b"after"}
        fault_stack.up()
