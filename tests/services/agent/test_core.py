"""The agent's rules on virtual time: which sets count, what is started and stopped, and what is said of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.agent import messages as m
from services.agent.orders import DesiredSet, Order, Position, set_digest
from services.agent.outbox import RunBegan
from services.agent.table import Phase
from statemachines.values import Evidence, RunId
from tests.services.agent.world import Node, devices, order, stop

R = RunId("job.1.0")


@pytest.fixture
def node() -> Node:
    made = Node()
    made.attach()
    return made


# --- which desired sets count


@pytest.mark.parametrize(("term", "offset"), [(1, 9), (1, 4), (0, 99)])
def test_an_older_set_changes_nothing(node: Node, term: int, offset: int) -> None:
    node.say(node.desire(order(R), term=1, offset=10))
    before = (node.core.at, dict(node.core.orders), dict(node.core.table))
    assert node.feed(node.desire(stop(R), term=term, offset=offset)) == []
    assert (node.core.at, node.core.orders, node.core.table) == before


def test_a_higher_term_beats_any_offset(node: Node) -> None:
    node.say(node.desire(order(R), term=1, offset=10))
    node.say(node.desire(stop(R), term=2, offset=3))
    assert node.core.at == Position(2, 3)
    assert node.sent(m.Terminate) == [m.Terminate(R)]


def test_the_same_set_again_is_acknowledged_again_and_starts_nothing(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.say(node.desire(order(R)))
    assert node.ever == [R]
    assert len(node.sent(m.SendAck)) == 2


def test_a_change_is_applied_to_the_set_before_it(node: Node) -> None:
    first, second = order(R), order("job.1.1")
    node.say(node.desire(first))
    change = DesiredSet(
        Position(1, 2), full=False, changed=(second,), digest=set_digest([first, second])
    )
    node.say(m.Desired(change))
    assert node.ever == [R, "job.1.1"]
    removal = DesiredSet(Position(1, 3), full=False, removed=(R,), digest=set_digest([second]))
    node.say(m.Desired(removal))
    assert node.sent(m.Terminate) == [m.Terminate(R)]


def test_a_change_with_another_digest_changes_nothing_and_asks_for_the_whole(node: Node) -> None:
    node.say(node.desire(order(R)))
    missed = DesiredSet(
        Position(1, 3), full=False, changed=(stop(R),), digest=set_digest([stop(R), order("x.1.0")])
    )
    assert node.feed(m.Desired(missed)) == [m.SendAck(Position(1, 3), b"")]
    assert node.core.at == Position(1, 1)
    assert node.alive == {R}


# --- starting once


def test_nothing_is_started_or_acknowledged_before_the_set_is_on_disk(node: Node) -> None:
    node.disk_full = True
    node.say(node.desire(order(R)))
    assert (node.ever, node.sent(m.SendAck)) == ([], [])
    assert not node.core.storage_ok
    node.wait(5_000, ack=True)
    assert node.ever == []
    node.disk_full = False
    node.wait(2_000, ack=True)
    assert (node.ever, len(node.sent(m.SendAck))) == ([R], 1)
    assert node.disk is not None
    assert [entry.run for entry in node.disk.entries] == [R]


def test_a_crash_between_the_write_and_the_start_starts_once(node: Node) -> None:
    [fetch, persist] = node.feed(node.desire(order(R)))
    for event in node.act(persist):  # It is on disk; the agent dies before it hears so.
        assert isinstance(event, m.Persisted)
    assert isinstance(fetch, m.Fetch)
    node.crash()
    assert node.ever == []
    node.attach()
    node.say(node.desire(order(R)))
    assert node.ever == [R]


def test_a_crash_right_after_the_start_does_not_start_it_again(node: Node) -> None:
    todo = node.feed(node.desire(order(R)))
    while not any(isinstance(action, m.Start) for action in todo):
        todo += [more for event in node.act(todo.pop(0)) for more in node.feed(event)]
    [start] = [action for action in todo if isinstance(action, m.Start)]
    node.act(start)  # The processes exist; nothing of that was heard or stored.
    node.crash()
    node.attach()
    node.say(node.desire(order(R)))
    node.say(node.desire(order(R, started=True), offset=2))
    assert (node.ever, node.alive) == ([R], {R})
    assert [report.kind for report in node.reports()] == [RunBegan(R)]


def test_a_restored_order_is_not_started_until_a_gateway_confirms_it(node: Node) -> None:
    [_, persist] = node.feed(node.desire(order(R)))
    node.act(persist)
    node.crash()
    node.wait(3_600_000)
    assert node.ever == []
    node.attach()
    assert node.ever == []
    node.say(node.desire(offset=2))
    assert (node.ever, node.alive) == ([], set())


def test_nothing_is_started_while_the_cell_may_count_the_node_as_cut_off() -> None:
    node = Node()
    node.say(m.Connected())
    node.say(m.Welcomed("c", 2_000))
    node.say(node.desire(order(R)))
    assert node.ever == []  # No beat was acknowledged yet.
    node.ack_beat()
    assert node.ever == [R]


def test_a_run_that_may_overlap_need_not_wait_for_a_beat() -> None:
    node = Node()
    node.say(m.Connected())
    node.say(m.Welcomed("c", 2_000))
    node.say(node.desire(order(R, overlap_safe=True)))
    assert node.ever == [R]


def test_a_start_that_failed_is_reported_as_never_started(node: Node) -> None:
    node.say(node.desire(order(R, launch="gone")))
    assert node.ever == [R]
    other = order("job.2.0", launch="deleted")
    node.feed(node.desire(order(R), other, offset=2))
    node.say(m.LaunchMissing("deleted", "it was deleted"))
    end = node.ends()["job.2.0"]
    assert (end.evidence, end.message) == (Evidence.NEVER_STARTED, "it was deleted")


def test_a_stop_before_the_start_means_it_never_started(node: Node) -> None:
    node.disk_full = True
    node.say(node.desire(order(R)))
    node.disk_full = False
    node.say(node.desire(stop(R), offset=2))
    node.wait(3_000, ack=True)
    assert (node.ever, node.evidence(R)) == ([], Evidence.NEVER_STARTED)


# --- runs that the table does not know


@pytest.mark.parametrize("unknown", [order(R, started=True), stop(R), stop(R, started=True)])
def test_a_run_that_is_unknown_here_is_looked_for_killed_and_reported(
    node: Node, unknown: Order
) -> None:
    node.say(node.desire(unknown))
    assert (node.ever, node.sent(m.Kill)) == ([], [m.Kill(R)])
    assert node.evidence(R) is Evidence.KILLED_AND_REAPED


def test_a_lost_table_starts_nothing_twice(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.disk = None
    node.crash()
    node.attach()
    node.say(node.desire(order(R, started=True), offset=2))
    assert (node.ever, node.alive) == ([R], set())
    assert node.evidence(R) is Evidence.KILLED_AND_REAPED


def test_what_lives_unknown_is_killed_once_a_set_does_not_name_it(node: Node) -> None:
    stray = RunId("old.1.0")
    node.crash()
    node.alive.add(stray)
    node.say(m.Strays((stray,)))
    node.attach()
    assert node.alive == {stray}
    node.say(node.desire(order(R)))
    assert node.alive == {R}
    assert node.evidence(stray) is Evidence.KILLED_AND_REAPED
    node.say(m.ReportAcked(node.reports()[-1].sequence))
    node.say(m.ReportAcked(node.reports()[-2].sequence))
    node.say(node.desire(order(R, started=True), offset=2))
    assert list(node.core.table) == [R]


def test_what_lives_unknown_and_is_ordered_is_not_killed_for_being_unknown(node: Node) -> None:
    node.disk = None
    node.crash()
    node.say(m.Strays((R,)))
    node.attach()
    node.say(node.desire(order(R)))
    assert node.sent(m.Kill) == []


# --- stopping


def test_stop_is_a_signal_then_after_the_grace_a_kill(node: Node) -> None:
    node.say(node.desire(order(R, grace_ms=10_000)))
    node.say(node.desire(stop(R, grace_ms=10_000), offset=2))
    assert node.sent(m.Terminate) == [m.Terminate(R)]
    node.wait(9_999, ack=True)
    assert node.sent(m.Kill) == []
    node.wait(1, ack=True)
    assert node.sent(m.Kill) == [m.Kill(R)]
    end = node.ends()[R]
    assert (end.evidence, end.signal) == (Evidence.KILLED_AND_REAPED, 9)


def test_a_run_that_ends_within_its_grace_reports_its_own_exit(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.say(node.desire(stop(R), offset=2))
    node.wait(5_000, ack=True)
    node.say(node.end(R, code=143))
    end = node.ends()[R]
    assert (end.evidence, end.exit_code) == (Evidence.EXIT_STATUS, 143)
    assert node.sent(m.Kill) == []


def test_a_set_without_a_run_stops_it(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.say(node.desire(offset=2))
    node.wait(30_000, ack=True)
    assert (node.alive, node.evidence(R)) == (set(), Evidence.KILLED_AND_REAPED)


def test_a_kill_that_did_not_empty_the_run_is_asked_for_again(node: Node) -> None:
    node.say(node.desire(order(R, grace_ms=0)))
    node.feed(node.desire(stop(R, grace_ms=0), offset=2))
    node.feed(m.Tick())
    for _ in range(3):
        node.freeze(node.core.settings.kill_again_ms)
        node.feed(m.Tick())
    assert node.sent(m.Kill) == [m.Kill(R)] * 4
    assert R not in node.ends()
    node.say(node.end(R, signal=9))
    assert node.evidence(R) is Evidence.KILLED_AND_REAPED


def test_losing_the_gateway_stops_nothing(node: Node) -> None:
    node.say(node.desire(order(R, fence_after_ms=0)))
    node.say(m.Disconnected())
    node.wait(24 * 3_600_000)
    assert (node.alive, node.sent(m.Terminate), node.sent(m.Kill)) == ({R}, [], [])


def test_devices_are_probed_after_a_hard_kill_of_several_before_the_end_is_told(node: Node) -> None:
    held = order(R, devices=devices(2), grace_ms=0)
    node.say(node.desire(held))
    node.feed(node.desire(stop(R, devices=devices(2), grace_ms=0), offset=2))
    node.feed(m.Tick())
    assert node.feed(node.end(R, signal=9))[0] == m.Probe(R, (0, 1))
    assert R not in node.ends()
    node.say(m.Probed(R, ((1, "no answer"),)))
    assert [(sent.device, sent.message) for sent in node.sent(m.SendProbeFailed)] == [
        (1, "no answer")
    ]
    assert node.evidence(R) is Evidence.KILLED_AND_REAPED


def test_a_probe_without_answer_fails_the_devices_and_does_not_hold_the_end_for_ever(
    node: Node,
) -> None:
    node.say(node.desire(order(R, devices=devices(2))))
    node.feed(node.end(R, signal=9))
    node.freeze(node.core.settings.probe_ms)
    node.feed(m.Tick())
    assert [sent.device for sent in node.sent(m.SendProbeFailed)] == [0, 1]
    assert R in node.ends()


def fenced_with_a_failed_device(node: Node) -> None:
    """Cut off, the run dies, and device 1 does not answer: all of it while nobody can be told."""
    node.say(node.desire(order(R, devices=devices(2))))
    node.say(m.Disconnected())
    node.failing = ((1, "no answer"),)
    node.say(node.end(R, signal=9))


def test_a_device_that_failed_while_nobody_listened_is_told_before_the_end_that_frees_it(
    node: Node,
) -> None:
    fenced_with_a_failed_device(node)
    assert node.sent(m.SendProbeFailed) == []
    before = len(node.done)
    node.attach()
    told = [type(each) for each in node.done[before:]]
    assert told.index(m.SendProbeFailed) < told.index(m.SendReport)


def test_a_failed_device_is_told_after_each_attach_until_a_later_beat_is_acknowledged(
    node: Node,
) -> None:
    fenced_with_a_failed_device(node)
    node.crash()
    node.say(m.Connected())
    node.say(m.Welcomed("c", 2_000))
    node.say(m.Disconnected())
    node.attach()
    assert [sent.device for sent in node.sent(m.SendProbeFailed)] == [1, 1]
    node.say(m.Disconnected())
    node.attach()
    assert len(node.sent(m.SendProbeFailed)) == 2
    assert node.disk is not None
    assert node.disk.failures == ()


def test_a_beat_from_before_says_nothing_of_a_failed_device(node: Node) -> None:
    node.say(node.desire(order(R, devices=devices(2))))
    node.wait(2_000)
    node.failing = ((1, "no answer"),)
    before = node.beats()[-1].sequence
    node.say(node.end(R, signal=9))
    node.say(m.BeatAcked(before))
    node.say(m.Disconnected())
    node.attach()
    assert len(node.sent(m.SendProbeFailed)) == 2


def test_a_failed_device_is_told_as_the_incarnation_that_tells_it(node: Node) -> None:
    fenced_with_a_failed_device(node)
    node.say(m.Connected())
    node.say(m.Refused("lost", "", 2))
    node.say(m.Disconnected())
    node.attach()
    assert [sent.incarnation for sent in node.sent(m.SendProbeFailed)] == [2]


def test_another_boot_has_other_devices(node: Node) -> None:
    fenced_with_a_failed_device(node)
    node.inventory = replace(node.inventory, boot_id="boot-2")
    node.stamp = None
    node.crash()
    node.attach()
    assert node.sent(m.SendProbeFailed) == []


def test_an_agent_that_died_while_it_probed_probes_again(node: Node) -> None:
    node.say(node.desire(order(R, devices=devices(2))))
    for action in node.feed(node.end(R, signal=9)):
        if isinstance(action, m.Persist):
            node.act(action)  # That it probes is on disk; the agent dies before the answer.
    node.crash()
    node.attach()
    assert node.sent(m.Probe) == [m.Probe(R, (0, 1))] * 2
    assert node.sent(m.SendProbeFailed) == []
    assert R in node.ends()


def test_a_clean_exit_needs_no_probe(node: Node) -> None:
    node.say(node.desire(order(R, devices=devices(8))))
    node.say(node.end(R))
    assert (node.sent(m.Probe), R in node.ends()) == ([], True)


# --- reports


def test_an_end_is_reported_until_it_is_acknowledged(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.say(m.Disconnected())
    node.say(node.end(R, code=3))
    assert R not in node.ends()
    node.attach()
    node.attach()
    said = [report for report in node.reports() if report.sequence == 2]
    assert len(said) == 2
    node.say(m.ReportAcked(2))
    before = len(node.reports())
    node.attach()
    assert [r.sequence for r in node.reports()[before:]] == [1]


def test_an_end_survives_a_crash_until_acknowledged(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.say(m.Disconnected())
    node.say(node.end(R, code=3))
    node.crash()
    node.attach()
    assert node.ends()[R].exit_code == 3


def test_an_end_is_reported_even_when_nothing_can_be_stored(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.disk_full = True
    node.say(node.end(R, code=1))
    assert node.ends()[R].exit_code == 1


def test_a_sequence_is_never_used_twice_even_when_writes_were_lost(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.disk_full = True
    node.say(node.end(R, code=1))
    used = max(report.sequence for report in node.reports())
    node.disk_full = False
    node.crash(adopt=False)
    node.say(m.Adopted(R, alive=False))
    node.attach()
    fresh = [r for r in node.reports() if isinstance(r.kind, type(node.ends()[R]))]
    assert fresh[-1].sequence > used


def test_a_run_that_was_over_before_its_start_was_told_began_all_the_same(node: Node) -> None:
    for action in list(node.feed(node.desire(order(R)))):
        for event in node.act(action):
            todo = node.feed(event)
            if any(isinstance(each, m.Start) for each in todo):
                node.start(R)
                node.say(node.end(R))
    node.say(m.Started(R))
    assert [type(r.kind).__name__ for r in node.reports()] == ["RunBegan", "RunFinished"]


def test_an_entry_leaves_the_table_when_no_order_names_it_and_its_end_is_acknowledged(
    node: Node,
) -> None:
    node.say(node.desire(order(R)))
    node.say(node.end(R))
    node.say(m.ReportAcked(1))
    node.say(m.ReportAcked(2))
    assert node.core.table[R].phase is Phase.ENDED
    node.say(node.desire(offset=2))
    assert node.core.table == {}
    assert node.sent(m.Forget) == [m.Forget(R)]
    assert node.disk is not None
    assert (node.disk.entries, node.disk.orders) == ((), ())


def test_an_ended_run_is_not_started_again_while_its_order_stands(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.say(node.end(R))
    for sequence in (1, 2):
        node.say(m.ReportAcked(sequence))
    node.crash()
    node.attach()
    node.say(node.desire(order(R, started=True), offset=5))
    assert node.ever == [R]


# --- early saves


def test_an_early_save_reaches_the_runs_file_when_it_changes(node: Node) -> None:
    node.say(node.desire(order(R)))
    asked = order(R, save_ask=1, stop_after_save=True)
    node.say(node.desire(asked, offset=2))
    node.say(node.desire(asked, offset=3))
    answered = order(R, save_ask=1, save_at_step=500, stop_after_save=True)
    node.say(node.desire(answered, offset=4))
    assert node.sent(m.Ask) == [
        m.Ask(R, 1, 0, stop_after=True),
        m.Ask(R, 1, 500, stop_after=True),
    ]


def test_an_early_save_is_written_again_after_a_restart(node: Node) -> None:
    node.say(node.desire(order(R, save_ask=1)))
    node.crash()
    assert node.sent(m.Ask) == [m.Ask(R, 1, 0, stop_after=False)]


# --- incarnations, boots, quitting


def test_a_refused_incarnation_kills_its_runs_reports_them_and_attaches_as_the_next(
    node: Node,
) -> None:
    node.say(node.desire(order(R, fence_after_ms=0)))
    node.say(m.Refused("lost", "", 2))
    assert node.alive == set()
    assert node.sent(m.Reconnect)
    assert node.sent(m.Terminate) == []
    node.say(m.Disconnected())
    node.attach()
    assert node.sent(m.SendAttach)[-1].incarnation == 2
    assert node.sent(m.SendAttach)[-1].live_runs == ()
    [end] = [r for r in node.reports() if getattr(r.kind, "evidence", None)]
    assert (end.incarnation, node.evidence(R)) == (1, Evidence.KILLED_AND_REAPED)


def test_an_ended_run_of_the_old_incarnation_is_not_ended_twice(node: Node) -> None:
    node.say(node.desire(order(R, fence_after_ms=0)))
    node.say(m.Refused("lost", "", 2))
    node.say(m.Disconnected())
    node.attach()
    for report in node.reports():
        node.say(m.ReportAcked(report.sequence))
    node.say(node.desire(stop(R, started=True), offset=2))
    assert len(node.sent(m.Kill)) == 1
    node.say(node.desire(offset=3))
    assert node.core.table == {}


def test_the_next_incarnation_is_on_disk_before_it_attaches(node: Node) -> None:
    node.disk_full = True
    node.say(m.Refused("lost", "", 7))
    node.say(m.Disconnected())
    node.say(m.Connected())
    assert [sent.incarnation for sent in node.sent(m.SendAttach)] == [1]
    node.disk_full = False
    node.wait(2_000)
    assert [sent.incarnation for sent in node.sent(m.SendAttach)] == [1, 7]
    assert node.disk is not None
    assert node.disk.incarnation == 7


def test_it_does_not_attach_anew_while_something_of_the_old_incarnation_lives(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.feed(m.Refused("lost", "", 2))
    node.feed(m.Disconnected())
    node.feed(m.Connected())
    assert node.core.incarnation == 1
    assert len(node.sent(m.SendAttach)) == 1


def test_a_refusal_without_a_next_incarnation_kills_nothing(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.say(m.Refused("permission", "not yours", 0))
    assert (node.alive, node.sent(m.Kill)) == ({R}, [])


def test_after_a_reboot_every_run_ended_by_it(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.alive.clear()
    node.inventory = replace(node.inventory, boot_id="boot-2")
    node.stamp = None
    node.crash()
    node.attach()
    assert node.evidence(R) is Evidence.NODE_REBOOTED
    assert node.sent(m.SendAttach)[-1].live_runs == ()


def test_it_attaches_only_when_it_knows_what_lives(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.crash(adopt=False)
    node.say(m.Connected())
    assert len(node.sent(m.SendAttach)) == 1
    node.say(m.Adopted(R, alive=True))
    assert node.sent(m.SendAttach)[-1].live_runs == (R,)


def test_a_run_that_died_with_its_supervisor_is_made_sure_of_and_reported(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.alive.clear()
    node.crash()
    node.attach()
    assert (node.ever, node.evidence(R)) == ([R], Evidence.KILLED_AND_REAPED)


def test_quitting_kills_everything_and_starts_nothing(node: Node) -> None:
    node.say(node.desire(order(R)))
    node.say(m.Quit())
    node.say(node.desire(order(R), order("job.2.0"), offset=2))
    assert (node.alive, node.ever) == (set(), [R])
    assert node.evidence(R) is Evidence.KILLED_AND_REAPED
