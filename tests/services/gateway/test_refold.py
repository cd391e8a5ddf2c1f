"""Looking back agrees with what was seen live: earlier moments, replays, verification, the last entries."""

from __future__ import annotations

import threading

import pytest

from services.gateway.refold import (
    Cancelled,
    Moment,
    Walk,
    newest,
    refold,
    replay,
    still,
    verify,
)
from services.gateway.trail import MARK_EVERY, Trail
from services.runtime import codec
from services.runtime.ports import LogRecord
from services.runtime.recovery import take_snapshot
from statemachines import snapshot
from statemachines.cluster import Cluster
from statemachines.facts import JobReleased, QueueApplied, TermOpened
from statemachines.values import JobId, QueueId
from tests.services.gateway.logs import Asked, Chain, Kept, Log, lived, log_of
from tests.services.gateway.world import CELL, World
from tidemill.v1 import log_service_pb2

GO_ON = threading.Event()


@pytest.fixture
def world() -> World:
    return lived()


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


def test_the_newest_entries_are_found_without_reading_everything() -> None:
    log, trail = long_log()
    last = len(log.records) - 1

    def walk_from(offset: int) -> tuple[Walk, bool]:
        mark = trail.before(offset)
        return Walk(log, CELL, mark), mark.offset < 0

    found = newest(walk_from, last, 2, lambda response: response.accepted)
    assert [response.offset for response in found] == [last - 1, last]
    assert min(log.asked) > MARK_EVERY


def long_log() -> tuple[Asked, Trail]:
    """A log with marks on its way, and what has followed it."""
    log = Asked()
    live = Cluster(CELL)
    trail = Trail(live)
    for number in range(2 * MARK_EVERY + 10):
        log.append_entry(TermOpened(1, str(number), "n", 1))
        record = log.records[-1]
        entry = codec.decode_entry(record.offset, record.value)
        assert live.fold(entry)
        trail.folded(live, entry)
    return log, trail


def test_more_than_there_is_gives_all(world: World) -> None:
    log = log_of(world)
    found = newest(
        lambda _offset: (Walk(log, CELL), True), len(log.records) - 1, 1_000, lambda _: True
    )
    assert len(found) == len(log.records)


def test_marks_let_a_walk_begin_in_the_middle() -> None:
    log, trail = long_log()
    mark = trail.before(2 * MARK_EVERY)
    steps = Walk(log, CELL, mark).read()
    assert (MARK_EVERY - 1 <= mark.offset < 2 * MARK_EVERY, {step.void for step in steps}) == (
        True,
        {""},
    )
