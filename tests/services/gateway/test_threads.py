"""The two threads and the loop: group commit, following the log, and what ends the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from services.gateway.commit import GroupCommit
from services.gateway.core import GatewayCore
from services.gateway.driver import Driver
from services.gateway.effects import Write
from services.gateway.follow import Follower, Read
from services.gateway.servicers.nodes import FETCHES_MAX, NodeServicer
from services.runtime import codec
from services.runtime.ids import blob_digest
from services.runtime.ports import LogRecord, Outgoing, PortError
from statemachines.cluster import Cluster
from statemachines.entry import Entry, Recorded
from statemachines.facts import TermOpened
from tests.services.gateway.world import CELL, KEY
from tidemill.v1 import log_pb2
from tidemill.v1 import node_service_pb2 as wire

WITHIN_S = 30.0


class Disk:
    """Publisher and blobs. `gate` holds up every publish until it is opened."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.order: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.began: SimpleQueue[int] = SimpleQueue()
        self.error: Exception | None = None

    def put(self, blobs: Sequence[bytes]) -> Sequence[str]:
        self.order += ["blob"] * len(blobs)
        return [blob_digest(blob) for blob in blobs]

    def get(self, digest: str) -> bytes | None:
        raise AssertionError(digest)

    def delete(self, digest: str) -> None:
        raise AssertionError(digest)

    def publish(self, records: Sequence[Outgoing]) -> None:
        self.began.put(len(records))
        assert self.gate.wait(WITHIN_S)
        if self.error is not None:
            raise self.error
        self.order += ["record"] * len(records)
        self.batches.append([record.value for record in records])

    def close(self) -> None:
        pass


class Outcomes:
    """What the commit thread said, in order."""

    def __init__(self) -> None:
        self.said: SimpleQueue[tuple[list[int], PortError | None]] = SimpleQueue()
        self.failed: SimpleQueue[BaseException] = SimpleQueue()
        self.measured: list[tuple[int, bool]] = []

    def commit(self, disk: Disk) -> GroupCommit:
        return GroupCommit(
            disk,
            disk,
            committed=lambda writes, error: self.said.put((list(writes), error)),
            failed=self.failed.put,
            measured=lambda _seconds, records, *, ok: self.measured.append((records, ok)),
        )


def write(number: int, *, blobs: tuple[bytes, ...] = ()) -> Write:
    return Write(number, (Outgoing("requests", b"k", str(number).encode()),), blobs)


def test_what_comes_while_one_write_is_made_shares_the_next() -> None:
    disk, outcomes = Disk(), Outcomes()
    commit = outcomes.commit(disk)
    commit.start()
    disk.gate.clear()
    commit.add([write(1)])
    disk.began.get(timeout=WITHIN_S)
    for number in (2, 3, 4):
        commit.add([write(number)])
    disk.gate.set()
    said = [outcomes.said.get(timeout=WITHIN_S) for _ in range(2)]
    commit.close(WITHIN_S)
    assert said == [([1], None), ([2, 3, 4], None)]
    assert (disk.batches, outcomes.measured) == (
        [[b"1"], [b"2", b"3", b"4"]],
        [(1, True), (3, True)],
    )


def test_blobs_are_stored_before_the_records_that_name_them_and_once() -> None:
    disk, outcomes = Disk(), Outcomes()
    commit = outcomes.commit(disk)
    commit.add([write(1, blobs=(b"x",)), write(2, blobs=(b"x",)), write(3, blobs=(b"y",))])
    commit.start()
    outcomes.said.get(timeout=WITHIN_S)
    commit.close(WITHIN_S)
    assert disk.order == ["blob", "blob", "record", "record", "record"]


def test_weather_is_said_of_every_write_of_the_batch_and_the_next_is_tried() -> None:
    disk, outcomes = Disk(), Outcomes()
    commit = outcomes.commit(disk)
    disk.error = PortError("away")
    commit.add([write(1), write(2)])
    commit.start()
    failed = outcomes.said.get(timeout=WITHIN_S)
    disk.error = None
    commit.add([write(3)])
    done = outcomes.said.get(timeout=WITHIN_S)
    commit.close(WITHIN_S)
    assert (failed[0], str(failed[1]), done) == ([1, 2], "away", ([3], None))


def test_a_bug_in_the_thread_is_not_lost() -> None:
    disk, outcomes = Disk(), Outcomes()
    commit = outcomes.commit(disk)
    disk.error = ValueError("a bug")
    commit.add([write(1)])
    commit.start()
    assert isinstance(outcomes.failed.get(timeout=WITHIN_S), ValueError)


def test_closing_writes_what_waits() -> None:
    disk, outcomes = Disk(), Outcomes()
    commit = outcomes.commit(disk)
    commit.add([write(number) for number in range(5)])
    commit.start()
    commit.close(WITHIN_S)
    assert [value for batch in disk.batches for value in batch] == [b"0", b"1", b"2", b"3", b"4"]


# --- following


class ScriptedLog:
    """An EventLog whose answers are put in by the test; without any it waits for the next."""

    def __init__(self) -> None:
        self.answers: SimpleQueue[Sequence[LogRecord] | Exception] = SimpleQueue()
        self.asked: list[tuple[int, float]] = []
        self.closed = threading.Event()

    def append(self, value: bytes) -> None:
        raise AssertionError(value)

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        self.asked.append((offset, timeout_s))
        answer = self.answers.get(timeout=WITHIN_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed.set()
        self.answers.put(())


def opened(offset: int, prev: bytes = bytes(32), *, fact: object = None) -> LogRecord:
    recorded = Recorded(fact or TermOpened(1, "leader", "nonce", 1))  # type: ignore[arg-type]
    body = codec.encode_body((), [recorded])
    return LogRecord(offset, codec.encode_entry(cell=CELL, term=1, prev=prev, at_ms=1, body=body))


def newer(offset: int, prev: bytes = bytes(32)) -> LogRecord:
    """An entry with a kind of fact that no version of ours knows."""
    body = log_pb2.Body()
    body.facts.add()
    stored = codec.encode_entry(
        cell=CELL, term=1, prev=prev, at_ms=1, body=body.SerializeToString()
    )
    return LogRecord(offset, stored)


class Followed:
    """A follower and what it handed over."""

    def __init__(self, offset: int = 0) -> None:
        self.log = ScriptedLog()
        self.handed: SimpleQueue[Sequence[Read]] = SimpleQueue()
        self.troubles: SimpleQueue[PortError] = SimpleQueue()
        self.failed: SimpleQueue[BaseException] = SimpleQueue()
        self.follower = Follower(
            self.log,
            offset,
            hand=self.handed.put,
            troubled=self.troubles.put,
            failed=self.failed.put,
        )
        self.follower.start()


def test_records_are_handed_over_in_order_and_an_empty_batch_is_the_end() -> None:
    followed = Followed(7)
    followed.log.answers.put([opened(7), opened(9)])
    followed.log.answers.put([])
    first = followed.handed.get(timeout=WITHIN_S)
    end = followed.handed.get(timeout=WITHIN_S)
    followed.follower.close(WITHIN_S)
    assert [read.offset for read in first if isinstance(read, Entry)] == [7, 9]
    assert (end, followed.log.asked[:2]) == ([], [(7, 0.0), (10, 0.0)])
    assert followed.log.closed.is_set()


def test_after_the_end_it_waits_and_after_records_it_looks_at_once() -> None:
    followed = Followed()
    for answer in ([], [opened(0)], []):
        followed.log.answers.put(answer)
        followed.handed.get(timeout=WITHIN_S)
    followed.follower.close(WITHIN_S)
    assert [timeout_s for _, timeout_s in followed.log.asked[:3]] == [0.0, 1.0, 0.0]


def test_weather_is_told_and_reading_goes_on_where_it_was() -> None:
    followed = Followed()
    followed.log.answers.put(PortError("away"))
    followed.log.answers.put([opened(0)])
    trouble = followed.troubles.get(timeout=WITHIN_S)
    records = followed.handed.get(timeout=WITHIN_S)
    followed.follower.close(WITHIN_S)
    assert (str(trouble), len(records)) == ("away", 1)
    assert [offset for offset, _ in followed.log.asked[:2]] == [0, 0]


def test_bytes_that_are_no_entry_are_handed_over_as_unreadable() -> None:
    followed = Followed()
    followed.log.answers.put([LogRecord(0, b"\xff")])
    (read,) = followed.handed.get(timeout=WITHIN_S)
    followed.follower.close(WITHIN_S)
    assert read == codec.unreadable(0)


def test_a_bug_while_reading_is_not_lost() -> None:
    followed = Followed()
    followed.log.answers.put(ValueError("a bug"))
    assert isinstance(followed.failed.get(timeout=WITHIN_S), ValueError)


# --- the loop


class Stand:
    """A driver over scripted ports."""

    def __init__(self) -> None:
        self.log, self.disk, self.telemetry = ScriptedLog(), Disk(), Disk()
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        core = GatewayCore(
            Cluster(CELL, track=True), name="gw", cell_key=KEY, new_id=lambda: "made"
        )
        self.driver = Driver(
            core,
            log=self.log,
            publisher=self.disk,
            telemetry=self.telemetry,
            blobs=self.disk,
            clock=StillClock(),
            failed=self.failed.set_result,
            troubled=lambda error: None,
            measured=lambda seconds, records, *, ok: None,
        )
        self.driver.start()

    def publish(self, topic: str, value: bytes) -> asyncio.Future[PortError | None]:
        """The core asks for a write; its outcome."""
        outcome: asyncio.Future[PortError | None] = asyncio.get_running_loop().create_future()
        effects = self.driver.core.effects
        record = Outgoing(topic, b"k", value, 0)
        effects.publish([record], lambda error, _now: outcome.set_result(error))
        self.driver.perform()
        return outcome

    async def stop(self) -> None:
        await self.driver.stop()


class StillClock:
    """A clock that stands."""

    def wall_ms(self) -> int:
        return 1_000

    def monotonic_ms(self) -> int:
        return 1_000


async def test_the_fold_follows_the_log_and_knows_when_it_has_caught_up() -> None:
    stand = Stand()
    folded = stand.driver.folded
    stand.log.answers.put([opened(0)])
    async with asyncio.timeout(WITHIN_S):
        await folded.wait()
    caught_up = stand.driver.caught_up.is_set()
    stand.log.answers.put([])
    async with asyncio.timeout(WITHIN_S):
        await stand.driver.caught_up.wait()
    await stand.stop()
    assert (caught_up, stand.driver.core.cluster.leader) == (False, "leader")


async def test_a_newer_versions_entry_that_extends_the_chain_ends_the_process() -> None:
    stand = Stand()
    stand.log.answers.put([newer(0)])
    async with asyncio.timeout(WITHIN_S):
        error = await stand.failed
    await stand.stop()
    assert isinstance(error, codec.UnknownFactError)


async def test_a_newer_versions_entry_that_is_void_is_passed_over() -> None:
    stand = Stand()
    folded = stand.driver.folded
    stand.log.answers.put([newer(0, prev=b"z" * 32)])
    async with asyncio.timeout(WITHIN_S):
        await folded.wait()
    await stand.stop()
    assert (stand.driver.core.cluster.voided, stand.failed.done()) == (1, False)


async def test_a_bug_in_a_thread_ends_the_process() -> None:
    stand = Stand()
    stand.log.answers.put(ValueError("a bug"))
    async with asyncio.timeout(WITHIN_S):
        error = await stand.failed
    await stand.stop()
    assert isinstance(error, ValueError)


class SlowBlobs(Disk):
    """Blobs of which each is waited for until the gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.clear()

    def get(self, digest: str) -> bytes | None:
        self.began.put(1)
        assert self.gate.wait(WITHIN_S)
        return digest.encode()


async def test_blobs_that_are_slow_leave_threads_for_others() -> None:
    stand, blobs = Stand(), SlowBlobs()
    servicer = NodeServicer(stand.driver, blobs)
    requests = [wire.GetBlobRequest(digest=blob_digest(b"%d" % n)) for n in range(40)]
    fetching = [asyncio.create_task(servicer.GetBlob(each, None)) for each in requests]  # type: ignore[arg-type]
    async with asyncio.timeout(WITHIN_S):
        for _ in range(FETCHES_MAX):
            await asyncio.to_thread(blobs.began.get, timeout=WITHIN_S)
        await asyncio.to_thread(lambda: None)
        began = blobs.began.qsize()
        blobs.gate.set()
        answers = await asyncio.gather(*fetching)
    await stand.stop()
    assert began == 0
    assert [answer.blob.decode() for answer in answers] == [each.digest for each in requests]


async def test_telemetry_and_what_is_decided_on_fail_apart() -> None:
    stand = Stand()
    stand.disk.error = PortError("too few brokers in sync")
    request, beat = stand.publish("requests", b"v"), stand.publish("beats", b"v")
    async with asyncio.timeout(WITHIN_S):
        said = str(await request), await beat
    await stand.stop()
    assert said == ("too few brokers in sync", None)
    assert (
        stand.disk.batches,
        [b"v" in batch for batch in stand.telemetry.batches].count(True),
    ) == ([], 1)
