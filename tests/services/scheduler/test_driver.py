"""The driver: recovery, standby, taking over, and every way to end. In memory; dying is an exception nothing catches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from services.runtime import chain, codec
from services.runtime.codec import UnknownFactError
from services.runtime.exits import ExitCode, exit_code_of
from services.runtime.ports import DamagedError, InputGapError, LogRecord, PortError
from services.scheduler.draft import seal
from services.scheduler.exits import (
    DeposedError,
    LeadershipLostError,
    TermBehindError,
)
from services.scheduler.opening import opening
from statemachines import facts
from statemachines.entry import Recorded
from statemachines.lifecycle import IllegalTransition
from statemachines.policy import DEFAULT_POLICY
from statemachines.values import JobId
from tests.fakes.memory import MemoryEventLog, MemoryLeadership, MemorySnapshots
from tests.services.scheduler.cell import spec
from tests.services.scheduler.stage import (
    Ballot,
    Crash,
    FaultyLog,
    Notes,
    Stage,
    same,
    settle,
    turns,
)
from tidemill.v1 import facts_pb2, log_pb2, requests_pb2


def test_a_new_cell_is_opened_with_policy_and_default_queue_and_decides() -> None:
    stage = Stage()
    notes = Notes()
    leader = stage.leader("one", 1, notes=notes)
    opened = notes.led[0]
    assert [type(each.fact) for each in opened.facts] == [facts.TermOpened, facts.QueueApplied]
    stage.submit("a", spec())
    settle(leader, stage)
    assert set(stage.read().jobs) == {"a"}
    assert same(leader.cluster, stage.read())


def test_settings_that_differ_from_the_log_are_recorded_as_the_term_opens() -> None:
    stage = Stage()
    policy = msgspec.structs.replace(DEFAULT_POLICY, grace_ms=7)
    stage.leader("one", 1, policy=policy)
    assert stage.read().policy == policy


def test_a_standby_folds_all_the_time_and_leads_at_once_when_the_leader_resigns() -> None:
    stage = Stage()
    first = stage.scheduler("one", MemoryLeadership(stage.cell))
    turns(first, until=lambda: first.leads)
    second = stage.scheduler("two", MemoryLeadership(stage.cell))
    stage.submit("a", spec())
    settle(first, stage)
    second.turn(0)
    assert (second.phase, same(second.cluster, first.cluster)) == ("standby", True)
    assert not second.cluster.take_touched().jobs, "what nobody asks for must not pile up"
    first.hand_over()
    turns(second, until=lambda: second.leads, most=3)
    assert (second.cluster.term, second.cluster.leader) == (2, "two")


def test_handing_over_leaves_a_snapshot_from_which_the_next_recovers() -> None:
    stage = Stage()
    first = stage.leader("one", 1)
    stage.submit("a", spec())
    settle(first, stage)
    first.hand_over()
    second = stage.scheduler("two", Ballot(2))
    assert (second.recovered.snapshot_offset, second.recovered.records) == (1, 0)
    assert same(second.cluster, stage.read())


def test_snapshots_are_taken_after_so_many_entries() -> None:
    stage = Stage()
    leader = stage.leader("one", 1, snapshot_entries=3)
    for number in range(7):
        stage.submit(f"j{number}", spec())
        settle(leader, stage)
        leader.turn(0)  # A quiet moment.
        leader.turn(0)
    assert sorted(stage.cell.snapshots) == [2, 5]
    recovered = stage.scheduler("two", Ballot(2)).recovered
    assert (recovered.snapshot_offset, recovered.records) == (5, 2)
    assert same(recovered.cluster, stage.read())


def test_a_leader_that_is_never_quiet_takes_its_snapshot_when_it_is_overdue() -> None:
    stage = Stage()
    leader = stage.leader("one", 1, snapshot_entries=3)
    for number in range(9):
        stage.submit(f"j{number}", spec())
        leader.turn(0)
    assert list(stage.cell.snapshots) == [5]


def test_while_a_snapshot_is_being_saved_no_other_is_taken() -> None:
    stage = Stage()
    queued: list[Callable[[], None]] = []
    leader = stage.leader("one", 1, snapshot_entries=1, background=queued.append)
    for number in range(5):
        stage.submit(f"j{number}", spec())
        settle(leader, stage)
        leader.turn(0)
        leader.turn(0)
    assert len(queued) == 1
    queued.pop()()
    leader.turn(0)
    assert (len(queued), len(stage.cell.snapshots)) == (1, 1)


def test_a_bug_that_saving_a_snapshot_meets_ends_the_leader() -> None:
    """On its thread nobody would hear of it."""

    class Broken(MemorySnapshots):
        def save(self, snapshot: object) -> None:
            raise ZeroDivisionError("a bug")

    stage = Stage()
    queued: list[Callable[[], None]] = []
    broken = Broken(stage.cell)
    leader = stage.leader("one", 1, snapshot_entries=1, snapshots=broken, background=queued.append)
    stage.submit("a", spec())
    settle(leader, stage)
    leader.turn(0)
    leader.turn(0)
    queued.pop()()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        leader.turn(0)


def test_a_snapshot_that_cannot_be_saved_is_weather() -> None:
    class Full(MemorySnapshots):
        def save(self, snapshot: object) -> None:
            raise PortError("no space left")

    stage = Stage()
    notes = Notes()
    leader = stage.leader("one", 1, notes=notes, snapshot_entries=1, snapshots=Full(stage.cell))
    stage.submit("a", spec())
    settle(leader, stage)
    leader.turn(0)
    leader.turn(0)
    assert notes.weathered[0] == "save_snapshot: no space left"
    assert leader.leads


# --- the chain decides


def test_two_leaders_at_once_one_decides_and_the_other_ends() -> None:
    stage = Stage()
    first = stage.leader("one", 1)
    stage.submit("a", spec())
    settle(first, stage)
    second = stage.leader("two", 2)
    stage.submit("b", spec())
    settle(second, stage)
    stage.submit("c", spec())
    with pytest.raises(DeposedError) as ended:
        first.turn(0)
    assert exit_code_of(ended.value) is ExitCode.DEPOSED
    settle(second, stage)
    assert set(stage.read().jobs) == {"a", "b", "c"}
    assert same(second.cluster, stage.read())


def test_an_entry_that_a_replaced_leader_appends_late_is_void_on_every_reader() -> None:
    stage = Stage()
    log = FaultyLog(MemoryEventLog(stage.cell))
    first = stage.leader("one", 1, log=log)
    late: list[bytes] = []
    log.append = late.append  # type: ignore[assignment, method-assign]  # Its append is stuck on the way.
    stage.submit("a", spec())
    first.turn(0)
    notes = Notes()
    second = stage.leader("two", 2, notes=notes)
    for value in late:
        MemoryEventLog(stage.cell).append(value)
    settle(second, stage)
    turns(second, until=lambda: notes.voids == 1)
    reader = stage.read()
    assert (reader.voided, set(reader.jobs)) == (1, {"a"})
    assert same(second.cluster, reader)
    with pytest.raises(DeposedError):
        first.turn(0)


def test_an_opening_that_turns_out_void_is_tried_again_on_the_new_head() -> None:
    stage = Stage()
    first = stage.leader("one", 1)
    racing = MemoryEventLog(stage.cell)

    class Race(FaultyLog):
        """An entry of the present leader comes in just before the opening."""

        def append(self, value: bytes) -> None:
            if self.appends == 0:
                stage.submit("a", spec())
                settle(first, stage)
            super().append(value)

    second = stage.leader("two", 2, log=Race(racing))
    assert second.cluster.leader == "two"
    assert (stage.read().voided, set(stage.read().jobs)) == (1, {"a"})


def test_a_term_that_another_opened_first_ends_the_candidate() -> None:
    stage = Stage()
    slow = stage.scheduler("slow", Ballot(5))
    slow.turn(0)
    stage.leader("quick", 6)
    with pytest.raises(DeposedError, match="term 6 of quick began before ours, 5"):
        slow.turn(0)


def test_a_term_not_above_the_logs_is_refused_with_what_an_operator_does() -> None:
    stage = Stage()
    stage.leader("one", 7).hand_over()
    restored = stage.scheduler("two", Ballot(7))
    with pytest.raises(TermBehindError, match="restored from a backup") as refused:
        restored.turn(0)
    assert exit_code_of(refused.value) is ExitCode.TERM_BEHIND
    assert stage.read().leader == "one"


def test_an_entry_of_ours_after_one_that_was_lost_is_void_and_ends_us() -> None:
    stage = Stage()
    log = FaultyLog(MemoryEventLog(stage.cell))
    leader = stage.leader("one", 1, log=log)
    keep = log.append
    log.append = lambda value: None  # type: ignore[method-assign]  # Said to be stored, and is not.
    stage.submit("a", spec())
    leader.turn(0)
    log.append = keep  # type: ignore[method-assign]
    stage.submit("b", spec())
    leader.turn(0)
    with pytest.raises(DeposedError, match="the one before it is not in the log"):
        leader.turn(0)


# --- unknown outcomes and dying


@pytest.mark.parametrize("word", ["lost", "unknown"])
@pytest.mark.parametrize("at", [0, 1])
def test_an_append_of_unknown_outcome_is_settled_by_reading(word: str, at: int) -> None:
    stage = Stage()
    leader = stage.scheduler("one", Ballot(1), words=["ok"] * at + [word])
    stage.submit("a", spec())
    failures = 0
    for _ in range(10):
        try:
            leader.turn(0)
        except PortError:
            failures += 1
    settle(leader, stage)
    reader = stage.read()
    admitted = [job.id for job in reader.jobs.values()]
    assert (failures, admitted, same(leader.cluster, reader)) == (1, ["a"], True)


@pytest.mark.parametrize("word", ["before", "after"])
@pytest.mark.parametrize("at", range(6))
def test_dying_at_any_append_loses_nothing_and_decides_nothing_twice(word: str, at: int) -> None:
    stage = Stage()
    keys = []
    first = stage.scheduler("one", Ballot(1), words=["ok"] * at + [word], snapshot_entries=2)

    def live() -> None:
        for number in range(8):
            first.turn(0)
            keys.append(stage.submit(f"j{number}", spec()))

    with pytest.raises(Crash):
        live()
    second = stage.leader("two", 2)
    settle(second, stage)
    reader = stage.read()
    assert [reader.answers[key].code for key in keys] == [""] * len(keys)
    assert list(reader.jobs) == [f"j{number}" for number in range(len(keys))]
    assert reader.next_number == len(keys) + 1
    assert same(second.cluster, reader)


# --- ends


def test_a_lost_lease_ends_the_leader_before_it_decides_more() -> None:
    stage = Stage()
    ballot = Ballot(1)
    leader = stage.scheduler("one", ballot)
    turns(leader, until=lambda: leader.leads)
    ballot.held = False
    stage.submit("a", spec())
    with pytest.raises(LeadershipLostError):
        leader.turn(0)
    assert stage.read().jobs == {}


def test_a_lease_lost_before_the_opening_ends_the_candidate() -> None:
    stage = Stage()
    ballot = Ballot(1)
    candidate = stage.scheduler("one", ballot)
    candidate.turn(0)
    ballot.held = False
    with pytest.raises(LeadershipLostError):
        candidate.turn(0)
    assert stage.cell.log == []


def test_a_gap_in_the_inputs_stops_the_leader_and_says_what_to_run() -> None:
    stage = Stage()
    leader = stage.leader("one", 1)
    stage.submit("a", spec())
    stage.submit("b", spec())
    stage.cell.drop("requests", 0, 1)
    with pytest.raises(InputGapError, match="tidemilld gap accept requests 0 1") as ended:
        leader.turn(0)
    assert exit_code_of(ended.value) is ExitCode.INPUT_GAP
    assert stage.read().jobs == {}


def test_an_accepted_gap_is_recorded_as_the_term_opens_and_then_decided_past() -> None:
    stage = Stage()
    stage.leader("one", 1)
    stage.submit("a", spec())
    stage.submit("b", spec())
    stage.cell.drop("requests", 0, 1)
    said = Recorded(facts.InputGapAccepted("requests", 0, 0, 1, "disk was lost"), "operator:root")
    leader = stage.leader("two", 2, said=lambda _: (said,))
    settle(leader, stage)
    assert set(stage.read().jobs) == {"b"}


def test_a_fact_that_this_version_does_not_know_stops_it() -> None:
    stage = Stage()
    leader = stage.leader("one", 1)
    newer = facts_pb2.Fact()
    body = log_pb2.Body(facts=[newer]).SerializeToString()
    cluster = stage.read()
    value = log_pb2.Entry(
        format=chain.FORMAT, cell="test", term=2, prev=cluster.head, at_ms=cluster.at_ms, body=body
    ).SerializeToString()
    MemoryEventLog(stage.cell).append(value)
    with pytest.raises(UnknownFactError, match="Upgrade this process"):
        leader.turn(0)
    with pytest.raises(UnknownFactError):
        stage.scheduler("two", Ballot(3))


def test_records_of_others_that_do_not_extend_the_chain_are_void_and_harmless() -> None:
    stage = Stage()
    notes = Notes()
    leader = stage.leader("one", 1, notes=notes)
    log = MemoryEventLog(stage.cell)
    log.append(b"\xff not an entry")
    log.append(log_pb2.Entry(format=9, cell="test", term=9, prev=bytes(32)).SerializeToString())
    log.append(stage.cell.log[0])
    turns(leader, until=lambda: notes.voids == 3)
    stage.submit("a", spec())
    settle(leader, stage)
    reader = stage.read()
    assert (reader.voided, leader.cluster.voided, same(leader.cluster, reader)) == (3, 3, True)


def test_an_illegal_fact_in_the_log_is_a_bug_and_stops_the_reader() -> None:
    stage = Stage()
    cluster = stage.read()
    broken = (Recorded(facts.JobReleased(JobId("nobody"))),)
    good = opening(cluster, term=1, leader="x", nonce="x", policy=DEFAULT_POLICY, now_ms=1)
    MemoryEventLog(stage.cell).append(good.value)
    cluster = stage.read()
    sealed = seal(
        cluster, term=1, at_ms=2, consumed=(), facts=broken, encoded=[codec.encode_fact(broken[0])]
    )
    MemoryEventLog(stage.cell).append(sealed.value)
    with pytest.raises(IllegalTransition) as ended:
        stage.scheduler("two", Ballot(2))
    assert exit_code_of(ended.value) is ExitCode.FOLD_BROKEN


def test_a_damaged_log_stops_with_how_to_restore() -> None:
    class Damaged(FaultyLog):
        def read(self, offset: int, *, limit: int, timeout_s: float) -> list:  # type: ignore[type-arg]
            raise DamagedError("page 7 is damaged. Restore a backup of the file.")

    stage = Stage()
    with pytest.raises(DamagedError, match="Restore a backup"):
        stage.scheduler("one", Ballot(1), log=Damaged(MemoryEventLog(stage.cell)))


# --- time


def test_steps_of_the_wall_clock_during_a_term_do_not_reach_the_log() -> None:
    stage = Stage()
    leader = stage.leader("one", 1)
    began_ms = stage.read().at_ms
    stage.clock.wall -= 3_600_000
    stage.clock.monotonic += 50
    stage.submit("a", spec())
    settle(leader, stage)
    assert stage.read().at_ms == began_ms + 50


def test_a_wall_clock_behind_the_log_counts_on_from_the_logs_time() -> None:
    stage = Stage()
    stage.leader("one", 1)
    began_ms = stage.read().at_ms
    stage.clock.wall -= 3_600_000
    leader = stage.leader("two", 2)
    stage.clock.advance(70)
    stage.submit("a", spec())
    settle(leader, stage)
    assert stage.read().at_ms == began_ms + 70


# --- reading back takes its time


class SlowLog(FaultyLog):
    """Appends are durable at once and can be read when the test says so."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(MemoryEventLog(stage.cell))
        self.shown = 1 << 30

    def read(self, offset: int, *, limit: int, timeout_s: float) -> Sequence[LogRecord]:
        records = super().read(offset, limit=limit, timeout_s=timeout_s)
        return [record for record in records if record.offset < self.shown]


def test_only_so_many_entries_are_in_flight_and_each_input_is_still_decided_once() -> None:
    stage = Stage()
    log = SlowLog(stage)
    leader = stage.leader("one", 1, log=log, in_flight_max=3)
    log.shown = 1
    for number in range(6):
        stage.submit(f"j{number}", spec())
        leader.turn(0)
    assert (log.appends, len(stage.cell.log)) == (4, 4)
    log.shown = 1 << 30
    settle(leader, stage)
    assert list(stage.read().jobs) == [f"j{number}" for number in range(6)]
    assert same(leader.cluster, stage.read())


def test_an_opening_that_is_not_seen_for_long_is_tried_again_and_counts_once() -> None:
    stage = Stage()
    log = SlowLog(stage)
    log.shown = 0
    candidate = stage.scheduler("one", Ballot(1), log=log)
    for _ in range(4):
        candidate.turn(0)
    assert (candidate.phase, len(stage.cell.log)) == ("opening", 3)
    log.shown = 1 << 30
    turns(candidate, until=lambda: candidate.leads)
    settle(candidate, stage)
    assert (stage.read().term, stage.read().voided) == (1, 2)


def test_an_opening_followed_by_anothers_entry_ends_its_author() -> None:
    stage = Stage()
    log = SlowLog(stage)
    log.shown = 0
    slow = stage.scheduler("slow", Ballot(1), log=log)
    slow.turn(0)
    slow.turn(0)
    stage.leader("quick", 2)
    log.shown = 1 << 30
    with pytest.raises(DeposedError, match="an entry of quick followed"):
        slow.turn(0)


def test_who_does_not_lead_hands_over_by_leaving_the_election() -> None:
    stage = Stage()
    standby, opening_ = Ballot(1), Ballot(2)
    stage.scheduler("one", standby).hand_over()
    second = stage.scheduler("two", opening_)
    second.turn(0)
    assert second.phase == "opening"
    second.hand_over()
    assert (standby.held, opening_.resigned, stage.cell.log) == (False, True, [])


def test_the_driver_tells_when_it_has_something_to_do() -> None:
    stage = Stage()
    leader = stage.leader("one", 1)
    assert leader.due_in_ms() == 0  # The first plan of a term.
    leader.turn(0)
    assert leader.due_in_ms() is None
    stage.submit("a", spec())
    settle(leader, stage)
    stage.ask(requests_pb2.CancelJob(job="a"))
    settle(leader, stage)
    assert leader.due_in_ms() == DEFAULT_POLICY.retire_after_ms
    assert stage.scheduler("two", Ballot(2)).due_in_ms() is None
