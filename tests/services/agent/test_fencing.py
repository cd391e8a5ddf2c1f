"""Cut off: what dies when, on which clock, and what rides through."""

from __future__ import annotations

import pytest

from services.agent import messages as m
from services.agent.fencing import BEATS_IN_FLIGHT, Lease, Now, Stamp
from statemachines.values import Evidence, RunId
from tests.services.agent.world import FENCE_MS, Node, order

R = RunId("job.1.0")


@pytest.fixture
def node() -> Node:
    made = Node()
    made.attach()
    made.say(made.desire(order(R)))
    assert made.alive == {R}
    return made


def test_a_run_is_killed_at_its_deadline_and_not_before(node: Node) -> None:
    node.say(m.Disconnected())
    node.wait(FENCE_MS - 1)
    assert node.sent(m.Kill) == []
    node.wait(1)
    assert node.sent(m.Kill) == [m.Kill(R)]
    node.attach()
    assert node.evidence(R) is Evidence.SELF_FENCED


def test_acknowledged_beats_keep_it_alive(node: Node) -> None:
    node.wait(10 * FENCE_MS, ack=True)
    assert node.alive == {R}


def test_a_connection_without_acknowledgements_does_not(node: Node) -> None:
    node.wait(FENCE_MS)
    assert node.alive == set()
    assert node.evidence(R) is Evidence.SELF_FENCED


def test_the_deadline_runs_from_when_the_acknowledged_beat_was_sent(node: Node) -> None:
    node.wait(2_000)
    sent = node.beats()[-1].sequence
    node.wait(50_000)
    node.say(m.BeatAcked(sent))  # Late by 50 s: worth what it was worth when it left.
    node.say(m.Disconnected())
    node.wait(FENCE_MS - 50_000 - 1)
    assert node.alive == {R}
    node.wait(1)
    assert node.alive == set()


def test_time_in_suspension_counts(node: Node) -> None:
    node.wait(FENCE_MS - 1, suspended=True)
    assert node.alive == {R}
    node.wait(1, suspended=True)
    assert node.alive == set()


@pytest.mark.parametrize(("seconds", "lives"), [(3, True), (8, True), (20, True), (60, False)])
def test_a_frozen_agent_that_thaws_kills_what_its_cell_has_given_up(
    node: Node, seconds: int, *, lives: bool
) -> None:
    unacknowledged = node.beats()[-1].sequence + 1
    node.freeze(seconds * 1000)
    node.feed(m.Tick())
    assert (node.sent(m.Kill) == []) == lives
    node.feed(m.BeatAcked(unacknowledged))
    assert (node.sent(m.Kill) == []) == lives


@pytest.mark.parametrize("seconds", [3, 8, 20, 60, 3_600])
def test_a_frozen_agent_lets_overlap_safe_runs_go_on(seconds: int) -> None:
    node = Node()
    node.attach()
    node.say(node.desire(order(R, overlap_safe=True)))
    node.freeze(seconds * 1000)
    node.say(m.Tick())
    assert node.alive == {R}


def test_only_the_runs_whose_time_is_up_are_killed() -> None:
    node = Node()
    node.attach()
    node.say(
        node.desire(
            order("a.1.0", fence_after_ms=10_000),
            order("b.1.0", fence_after_ms=20_000),
            order("c.1.0", fence_after_ms=0),
            order("d.1.0", fence_after_ms=10_000, overlap_safe=True),
        )
    )
    node.say(m.Disconnected())
    node.wait(10_000)
    assert node.alive == {"b.1.0", "c.1.0", "d.1.0"}
    node.wait(3_600_000)
    assert node.alive == {"c.1.0", "d.1.0"}


def test_a_restarted_agent_goes_on_counting_where_the_last_one_stopped(node: Node) -> None:
    node.say(m.Disconnected())
    node.wait(40_000)
    node.crash()
    assert node.alive == {R}
    node.wait(FENCE_MS - 40_000 - 1)
    assert node.alive == {R}
    node.wait(1)
    assert node.alive == set()


def test_an_agent_that_was_dead_past_the_deadline_fences_before_it_attaches(node: Node) -> None:
    node.freeze(FENCE_MS)
    node.crash()
    assert node.alive == set()


def test_without_a_stamp_a_restored_run_is_taken_to_be_cut_off(node: Node) -> None:
    node.stamp = None
    node.crash()
    assert node.alive == set()


def test_an_exit_of_its_own_while_being_fenced_is_told_as_it_was(node: Node) -> None:
    node.freeze(FENCE_MS)
    node.feed(m.Tick())
    node.feed(node.end(R, code=4))
    node.attach()
    assert (node.evidence(R), node.ends()[R].exit_code) == (Evidence.EXIT_STATUS, 4)


def test_a_fenced_run_is_not_started_again_when_the_cell_still_orders_it(node: Node) -> None:
    node.say(m.Disconnected())
    node.wait(FENCE_MS)
    node.attach()
    node.say(node.desire(order(R, started=True), offset=2))
    assert node.ever == [R]


# --- the lease itself


def at(ms: int) -> Now:
    return Now(ms, ms, ms)


def test_an_acknowledgement_overtaken_by_a_newer_one_renews_nothing() -> None:
    lease = Lease(Stamp(0, 0, 0))
    first, second = lease.send(at(100)), lease.send(at(200))
    assert lease.acknowledge(second) == Stamp(200, 200, second)
    assert lease.acknowledge(first) is None
    assert lease.cut_off_ms(at(250)) == 50


def test_an_acknowledgement_of_a_beat_that_was_never_sent_renews_nothing() -> None:
    lease = Lease(Stamp(0, 0, 0))
    assert lease.acknowledge(5) is None
    assert lease.cut_off_ms(at(70)) == 70


def test_beats_in_flight_are_bounded_and_forgotten_on_the_safe_side() -> None:
    lease = Lease(Stamp(0, 0, 0))
    sequences = [lease.send(at(n)) for n in range(BEATS_IN_FLIGHT + 5)]
    assert lease.acknowledge(sequences[0]) is None
    assert lease.acknowledge(sequences[-1]) is not None
