"""History for people: every kind of fact has its sentence; looking back agrees with what was seen live."""

from __future__ import annotations

import threading
import typing
from collections.abc import Sequence

import msgspec
import pytest

from services.gateway.history import SENTENCES, About
from services.gateway.names import find_subject
from services.gateway.refold import (
    LINES_MAX,
    Cancelled,
    Moment,
    Walk,
    history,
    newest,
    refold,
    replay,
    still,
    verify,
)
from services.gateway.refusal import Refusal
from services.gateway.trail import MARK_EVERY, Trail
from services.runtime import codec
from services.runtime.ports import LogRecord, SnapshotRecord
from services.runtime.recovery import take_snapshot
from statemachines import snapshot
from statemachines.cluster import Cluster
from statemachines.entry import Position, Recorded
from statemachines.facts import Fact, JobHeld, JobReleased, QueueApplied, TermOpened
from statemachines.values import JobId, NodeId, QueueId, Reason
from tests.services.gateway.world import CELL, World
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import log_service_pb2

GO_ON = threading.Event()


class Log:
    """Records in memory, as an EventLog."""

    def __init__(self, records: Sequence[LogRecord]) -> None:
        self.records = list(records)

    def append(self, value: bytes) -> None:
        self.records.append(LogRecord(len(self.records), value))

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        return self.records[offset : offset + limit]

    def close(self) -> None:
        pass


class Kept:
    """Snapshots in memory, newest first."""

    def __init__(self, *records: SnapshotRecord) -> None:
        self.records = records

    def save(self, record: SnapshotRecord) -> None:
        raise AssertionError("nobody saves here")

    def load(self) -> typing.Iterator[SnapshotRecord]:
        return iter(self.records)

    def close(self) -> None:
        pass


@pytest.fixture
def world() -> World:
    """A job that ran on n1 and ended, one that was held, and one that waits."""
    world = World()
    stream = world.attach("n1")
    world.settle()
    job = world.admitted("r1")
    world.finished(stream, "n1", f"{job}.1.0", sequence=1)
    world.settle()
    held = world.admitted("r2", held=True)
    world.change(jobs.ReleaseJobRequest(job=held))
    world.settle()
    return world


def log_of(world: World) -> Log:
    return Log(world.log)


def texts(lines: Sequence[jobs.HistoryLine]) -> list[str]:
    return [line.fact for line in lines]


# --- sentences


def test_every_kind_of_fact_has_its_sentence_and_nothing_else_has_one() -> None:
    assert set(SENTENCES) == set(typing.get_args(Fact))


@pytest.mark.parametrize("kind", SENTENCES, ids=lambda kind: kind.__name__)
def test_every_sentence_can_be_said_of_an_empty_fact(kind: type[msgspec.Struct]) -> None:
    fact = example(kind)
    text = SENTENCES[kind](fact)
    assert text.split()
    assert not {"None", "Struct", "<"} & set(text.split())


def example(kind: type) -> object:
    """A value of the type with the plainest field values there are."""
    hints = typing.get_type_hints(kind)
    return kind(**{field: plainest(hints[field]) for field in kind.__struct_fields__})  # type: ignore[attr-defined]


def plainest(hint: object) -> object:
    kind = getattr(hint, "__supertype__", hint)
    if typing.get_origin(kind) is tuple:
        return ()
    if isinstance(kind, type) and issubclass(kind, str) and kind is not str:
        return next(iter(kind))  # type: ignore[call-overload]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return example(kind)
    assert isinstance(kind, type), kind
    return kind()


# --- whom a fact is about


def test_a_jobs_history_is_the_same_by_walking_as_it_happened(world: World) -> None:
    job = world.gateway.cluster.job_at(1)
    assert job is not None
    lines = history(Walk(log_of(world), CELL).steps(GO_ON), job.id)
    assert texts(lines) == [
        "JobAdmitted", "GangPlaced", "RunEnded", "AttemptEnded",
    ]  # fmt: skip
    assert [line.offset for line in lines] == sorted(line.offset for line in lines)
    assert lines[0].by == "user:alice"


def test_the_trail_of_the_live_fold_leads_to_the_same_history(world: World) -> None:
    for job in world.gateway.cluster.jobs:
        offsets = world.gateway.trail.offsets(job)
        lines = history(Walk(log_of(world), CELL).steps(GO_ON), job)
        assert sorted(set(offsets)) == sorted({line.offset for line in lines})
        assert world.gateway.trail.is_whole(job)


def test_a_trail_that_began_after_a_job_says_that_it_is_not_whole(world: World) -> None:
    later = Trail(world.gateway.cluster)
    job = next(iter(world.gateway.cluster.jobs))
    assert (later.is_whole(job), list(later.offsets(job))) == (False, [])


def test_a_nodes_history_holds_its_runs_ends(world: World) -> None:
    lines = history(Walk(log_of(world), CELL).steps(GO_ON), "n1")
    assert texts(lines) == ["NodeJoined", "GangPlaced", "RunEnded", "GangPlaced"]


def test_a_queues_history_is_found_too(world: World) -> None:
    lines = history(Walk(log_of(world), CELL).steps(GO_ON), "default")
    assert texts(lines) == ["QueueApplied"]


def test_an_arrays_history_is_its_jobs(world: World) -> None:
    array = world.admitted("r3", count=2, devices=0)
    lines = history(Walk(log_of(world), CELL).steps(GO_ON), array)
    one = history(Walk(log_of(world), CELL).steps(GO_ON), f"{array}_1")
    assert texts(lines) == ["JobAdmitted", "GangPlaced", "GangPlaced"]
    assert texts(one) == ["JobAdmitted", "GangPlaced"]


def test_a_number_leads_to_its_job_in_the_log_alone(world: World) -> None:
    array = world.admitted("r3", count=2, devices=0)
    for number, job in enumerate((*world.gateway.cluster.jobs,), start=1):
        by_number = history(Walk(log_of(world), CELL).steps(GO_ON), str(number))
        assert by_number == history(Walk(log_of(world), CELL).steps(GO_ON), job) != []
    assert history(Walk(log_of(world), CELL).steps(GO_ON), "5") == []
    assert [job.startswith(array) for job in world.gateway.cluster.jobs] == [
        False,
        False,
        True,
        True,
    ]


def test_what_a_history_is_asked_of_is_found_as_everywhere(world: World) -> None:
    cluster = world.gateway.cluster
    array = world.admitted("r3", count=2, devices=0)
    job = next(iter(cluster.jobs))
    assert find_subject(cluster, "1") == find_subject(cluster, job[:6]) == job
    assert [find_subject(cluster, name) for name in ("n1", "default", array, "gone")] == [
        "n1", "default", array, "gone",
    ]  # fmt: skip
    with pytest.raises(Refusal, match="several"):
        find_subject(cluster, "")


def test_history_is_bounded_by_time(world: World) -> None:
    moved = world.log[2:]
    entry = codec.decode_entry(moved[0].offset, moved[0].value)
    job = world.gateway.cluster.job_at(1)
    assert job is not None
    whole = history(Walk(log_of(world), CELL).steps(GO_ON), job.id)
    none = history(Walk(log_of(world), CELL).steps(GO_ON), job.id, from_ms=entry.at_ms + 1)
    upto = history(Walk(log_of(world), CELL).steps(GO_ON), job.id, to_ms=entry.at_ms - 1)
    assert (len(whole), none, upto) == (4, [], [])


def test_a_long_history_keeps_its_beginning_and_its_newest_lines() -> None:
    log = Chain()
    for number in range(LINES_MAX + 500):
        fact = JobHeld(JobId("j"), Reason(str(number))) if number else JobReleased(JobId("j"))
        log.append_entry(fact)
    lines = history(Walk(log, CELL).steps(GO_ON), "j")
    assert (len(lines), lines[0].fact, lines[1].text, lines[-1].text) == (
        LINES_MAX,
        "JobReleased",
        "held: 501",
        f"held: {LINES_MAX + 499}",
    )


def test_about_nothing_it_was_not_asked_about() -> None:
    about = About("n1")
    assert not about(JobReleased(JobId("j")))
    assert about(example_node("n1"))


def example_node(name: str) -> Fact:
    from statemachines.facts import NodeRecovered

    return NodeRecovered(NodeId(name))


class Chain(Log):
    """A log to which entries are appended by hand, legal or not for the fold."""

    def __init__(self) -> None:
        super().__init__([])
        self.head = bytes(32)

    def append_entry(
        self, *facts: Fact, term: int = 1, prev: bytes | None = None, at_ms: int = 1
    ) -> bytes:
        """The digest of what was appended; the next one extends it unless it says otherwise."""
        body = codec.encode_body(
            (Position("requests", 0, 0, 0),), [Recorded(fact) for fact in facts]
        )
        value = codec.encode_entry(
            cell=CELL, term=term, prev=self.head if prev is None else prev, at_ms=at_ms, body=body
        )
        self.append(value)
        digest = codec.decode_entry(len(self.records) - 1, value).digest
        if prev is None:
            self.head = digest
        return digest


# --- an earlier moment


def test_the_cell_at_an_offset_is_the_cell_as_it_was(world: World) -> None:
    for offset in range(1, len(world.log)):
        live = Cluster(CELL)
        for record in world.log[: offset + 1]:
            live.fold(codec.decode_entry(record.offset, record.value))
        done = refold(log_of(world), CELL, Moment(at_offset=offset), GO_ON, snapshots=None)
        assert snapshot.digest(done.cluster) == snapshot.digest(live)


def test_a_snapshot_before_the_moment_saves_the_way_and_changes_nothing(world: World) -> None:
    live = Cluster(CELL)
    for record in world.log[:3]:
        live.fold(codec.decode_entry(record.offset, record.value))
    kept = Kept(take_snapshot(world.gateway.cluster), take_snapshot(live))
    moment = Moment(at_offset=3)
    short = refold(log_of(world), CELL, moment, GO_ON, snapshots=kept)
    whole = refold(log_of(world), CELL, moment, GO_ON, snapshots=None)
    assert (short.entries, whole.entries) == (1, 4)
    assert snapshot.digest(short.cluster) == snapshot.digest(whole.cluster)


def test_a_snapshot_of_another_log_is_not_believed(world: World) -> None:
    other = World()
    other.admitted("r9")
    kept = Kept(take_snapshot(other.gateway.cluster))
    moment = Moment(at_offset=len(world.log) - 1)
    done = refold(log_of(world), CELL, moment, GO_ON, snapshots=kept)
    assert other.gateway.cluster.offset < moment.at_offset
    assert snapshot.digest(done.cluster) == snapshot.digest(world.gateway.cluster)


def test_a_time_before_everything_is_an_empty_cell(world: World) -> None:
    done = refold(log_of(world), CELL, Moment(at_ms=1), GO_ON, snapshots=None)
    assert (done.entries, done.cluster.jobs) == (0, {})


def test_a_replay_to_the_end_has_the_digest_of_the_live_fold(world: World) -> None:
    response = replay(log_of(world), still(world.gateway.cluster), Moment(), GO_ON)
    assert (response.state_digest, response.offset) == (response.live_digest, len(world.log) - 1)
    assert dict(response.jobs_by_state) == {"succeeded": 1, "starting": 1}
    assert response.live_digest != b""


def test_a_replay_to_an_earlier_offset_claims_no_live_digest(world: World) -> None:
    response = replay(log_of(world), still(world.gateway.cluster), Moment(at_offset=2), GO_ON)
    assert (response.offset, response.live_digest) == (2, b"")


def test_a_still_copy_stays_while_the_live_one_goes_on(world: World) -> None:
    twin = still(world.gateway.cluster)
    before = snapshot.digest(twin)
    world.admitted("later")
    assert snapshot.digest(twin) == before
    assert snapshot.digest(world.gateway.cluster) != before


def test_work_that_nobody_waits_for_ends(world: World) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        refold(log_of(world), CELL, Moment(), stop, snapshots=None)
    with pytest.raises(Cancelled):
        list(Walk(log_of(world), CELL).steps(stop))
    with pytest.raises(Cancelled):
        list(verify(log_of(world), CELL, {}, stop))


# --- verification


def verified(log: Log, heads: dict[int, bytes] | None = None) -> log_service_pb2.VerifyLogResponse:
    last = list(verify(log, CELL, heads or {}, GO_ON))[-1]
    assert last.done
    return last


def heads_of(world: World) -> dict[int, bytes]:
    return {world.gateway.cluster.offset: world.gateway.cluster.head}


def test_an_untouched_log_is_sound_and_has_the_live_state(world: World) -> None:
    last = verified(log_of(world), heads_of(world))
    assert (last.ok, last.problem, last.voided, last.entries) == (True, "", 0, len(world.log))
    assert last.state_digest == snapshot.digest(world.gateway.cluster)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_record_that_was_changed_is_found(world: World, offset: int) -> None:
    log = log_of(world)
    stored = log.records[offset].value
    log.records[offset] = LogRecord(offset, stored[:-1] + bytes([stored[-1] ^ 1]))
    last = verified(log, heads_of(world))
    assert last.ok is False
    assert last.problem


def test_a_record_that_was_cut_out_is_found(world: World) -> None:
    log = log_of(world)
    log.records[2] = LogRecord(2, b"")
    last = verified(log, heads_of(world))
    assert (last.ok, "not what was written" in last.problem) == (False, True)


def test_a_log_that_was_cut_short_before_what_was_acted_on_is_found_by_its_last_head(
    world: World,
) -> None:
    log = log_of(world)
    del log.records[-2:]
    last = verified(log, heads_of(world))
    assert (last.ok, "ends at offset" in last.problem) == (False, True)


def test_void_entries_of_a_dead_leader_are_no_problem() -> None:
    log = Chain()
    log.append_entry(TermOpened(1, "a", "n", 1), QueueApplied(QueueId("q"), "", -1, -1, -1))
    zombie = log.append_entry(TermOpened(1, "z", "n", 1), prev=b"z" * 32)
    log.append_entry(TermOpened(1, "z", "n", 1), prev=zombie)
    log.append_entry(TermOpened(2, "b", "n", 1), term=2)
    last = verified(log)
    assert (last.ok, last.problem, last.accepted, last.voided) == (True, "", 2, 2)


def test_a_changed_record_is_found_without_anyone_who_saw_the_log_before() -> None:
    log = Chain()
    log.append_entry(TermOpened(1, "a", "n", 1))
    log.append_entry(TermOpened(2, "b", "n", 1), term=2)
    log.append_entry(TermOpened(3, "c", "n", 1), term=3)
    changed = Chain()
    changed.append_entry(TermOpened(1, "x", "n", 1))
    log.records[0] = changed.records[0]
    last = verified(log)
    assert (last.ok, "nothing is accepted" in last.problem) == (False, True)


def test_bytes_that_are_no_entry_are_void_and_no_problem() -> None:
    log = Chain()
    log.append_entry(TermOpened(1, "a", "n", 1))
    log.append(b"\xff\x00garbage")
    log.append_entry(TermOpened(2, "b", "n", 1), term=2)
    last = verified(log)
    assert (last.ok, last.voided) == (True, 1)


def test_a_fact_that_the_fold_calls_illegal_stops_with_where_it_is() -> None:
    log = Chain()
    log.append_entry(TermOpened(1, "a", "n", 1))
    log.append_entry(JobReleased(JobId("nobody")))
    last = verified(log)
    assert (last.ok, "at or behind offset 1" in last.problem) == (False, True)


# --- the last entries


def test_the_newest_entries_are_found_without_reading_everything(world: World) -> None:
    for _ in range(3):
        world.admitted(f"more-{_}")
    log = log_of(world)
    asked: list[int] = []

    def walk_from(offset: int) -> tuple[Walk, bool]:
        asked.append(offset)
        mark = world.gateway.trail.before(offset)
        return Walk(log, CELL, mark), mark.offset < 0

    found = newest(walk_from, len(log.records) - 1, 2, lambda response: response.accepted)
    assert [response.offset for response in found] == [len(log.records) - 2, len(log.records) - 1]


def test_more_than_there_is_gives_all(world: World) -> None:
    log = log_of(world)
    found = newest(
        lambda _offset: (Walk(log, CELL), True), len(log.records) - 1, 1_000, lambda _: True
    )
    assert len(found) == len(log.records)


def test_marks_let_a_walk_begin_in_the_middle() -> None:
    log = Chain()
    live = Cluster(CELL)
    trail = Trail(live)
    for number in range(2 * MARK_EVERY + 10):
        log.append_entry(TermOpened(1, str(number), "n", 1))
        record = log.records[-1]
        entry = codec.decode_entry(record.offset, record.value)
        assert live.fold(entry)
        trail.folded(live, entry)
    mark = trail.before(2 * MARK_EVERY)
    steps = Walk(log, CELL, mark).read()
    assert (MARK_EVERY - 1 <= mark.offset < 2 * MARK_EVERY, {step.void for step in steps}) == (
        True,
        {""},
    )
