"""Silence of nodes, on virtual time: suspect, gone, back, and what is never judged."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from services.health.messages import (
    Beat,
    MassSilence,
    NodeBack,
    NodeForgotten,
    NodeGone,
    NodeKnown,
    NodeSuspect,
    PathHeard,
    SilenceOver,
)
from services.health.rules import Rules
from services.health.silence import Silence
from statemachines.node import NodeState
from tests.services.health.bed import BEAT_MS, START_MS, STEP_MS, TICK_MS, Bed

HOUR_MS = 3_600_000
LOST_MS = Rules().lost_after_ms


def test_nodes_that_speak_are_never_judged() -> None:
    bed = Bed(20)
    bed.run(600_000)
    assert bed.said == []


@pytest.mark.parametrize(
    ("stopped_ms", "said"),
    [
        (3_000, []),
        (8_000, ["NodeSuspect", "NodeBack"]),
        (20_000, ["NodeSuspect", "NodeGone"]),
        (60_000, ["NodeSuspect", "NodeGone"]),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2, 3, 100])
def test_a_stopped_agent_in_a_cell_of_any_size(
    nodes: int, stopped_ms: int, said: list[str]
) -> None:
    bed = Bed(nodes)
    bed.run(30_000)
    bed.mute(["n0"], stopped_ms)
    bed.run(120_000)
    assert bed.kinds() == said


@pytest.mark.parametrize("late_ms", range(0, BEAT_MS + STEP_MS, STEP_MS))
def test_a_pause_of_eight_seconds_loses_no_node_whenever_it_begins(late_ms: int) -> None:
    bed = Bed(4)
    bed.run(30_000 + late_ms)
    bed.mute(["n0"], 8_000 + STEP_MS)  # The batch of the beat after it may wait a little.
    bed.run(60_000)
    assert bed.kinds() == ["NodeSuspect", "NodeBack"]


def test_a_partition_that_brings_nothing_judges_nobody_though_others_go_on() -> None:
    """The broker that led it is gone; the gateway of it is ours."""

    def bring(bed: Bed) -> None:
        bed.detector.observe(PathHeard(1), bed.now_ms)

    bed = Bed(2)
    bed.also.append(bring)
    bed.run(30_000)
    bed.also.clear()
    bed.mute(["n0"], 20_000)
    bed.run(20_000)
    assert bed.said == []
    bring(bed)
    bed.run(1_000)
    assert bed.said == []


def test_a_dead_node_is_suspect_after_six_seconds_and_gone_after_ten_and_a_half() -> None:
    bed = Bed(5)
    bed.run(30_000)
    bed.mute(["n2"])
    bed.run(30_000)
    slack_ms = BEAT_MS + TICK_MS + STEP_MS
    (suspect_ms,), (gone_ms,) = bed.times(NodeSuspect), bed.times(NodeGone)
    assert 6_000 - BEAT_MS <= suspect_ms - 30_000 <= 6_000 + slack_ms
    assert LOST_MS - BEAT_MS <= gone_ms - 30_000 <= LOST_MS + slack_ms
    (gone,) = bed.of(NodeGone)
    assert (gone.node, gone.incarnation, gone.message) == (
        "n2",
        1,
        f"silent for {gone.silent_ms // 1000} s",
    )
    assert LOST_MS <= gone.silent_ms < LOST_MS + 2_000


def test_a_node_that_never_spoke_is_given_a_whole_window() -> None:
    bed = Bed(2)
    bed.mute(["n1"])
    bed.run(9_000)
    assert bed.kinds() == ["NodeSuspect"]
    bed.run(4_000)
    assert bed.kinds() == ["NodeSuspect", "NodeGone"]


def test_a_restarted_processor_gives_everyone_a_whole_window() -> None:
    bed = Bed(3)
    bed.run(30_000)
    bed.mute(["n0"])
    bed.run(9_000)
    bed.recover()
    restarted_ms = bed.now_ms - START_MS
    bed.said.clear()
    bed.run(30_000)
    assert bed.kinds() == ["NodeGone"]  # The log has it as suspect already.
    assert bed.times(NodeGone)[0] - restarted_ms >= LOST_MS


def test_a_restarted_processor_hears_a_suspect_and_says_so() -> None:
    bed = Bed(2)
    bed.record_node("n0", NodeState.SUSPECT)
    bed.recover()
    bed.run(5_000)
    assert bed.kinds() == ["NodeBack"]
    assert bed.nodes["n0"].state is NodeState.READY


def test_a_lost_node_is_back_only_as_a_new_incarnation() -> None:
    bed = Bed(3)
    bed.mute(["n0"], 30_000)
    bed.run(60_000)
    assert bed.kinds() == ["NodeSuspect", "NodeGone"]
    bed.rejoin("n0")
    bed.run(30_000)
    assert bed.detector.silence.watched == 3
    bed.said.clear()
    bed.mute(["n0"])
    bed.run(20_000)
    assert bed.kinds() == ["NodeSuspect", "NodeGone"]
    assert bed.of(NodeGone)[0].incarnation == 2


def beats_as(incarnation: int) -> Callable[[Bed], None]:
    """Someone beats as n0 at every step."""

    def beat(bed: Bed) -> None:
        bed.detector.observe(Beat("n0", incarnation, 0), bed.now_ms)

    return beat


def test_a_beat_of_an_earlier_incarnation_is_no_sign_of_life() -> None:
    bed = Bed(2)
    bed.rejoin("n0")
    bed.mute(["n0"])
    bed.also.append(beats_as(1))
    bed.run(20_000)
    assert bed.kinds() == ["NodeSuspect", "NodeGone"]


def test_a_beat_of_a_later_incarnation_is_life_but_brings_no_suspect_back() -> None:
    bed = Bed(2)
    bed.record_node("n0", NodeState.SUSPECT)
    bed.mute(["n0"])
    bed.also.append(beats_as(2))
    bed.run(30_000)
    assert bed.said == []


def test_a_beat_of_a_node_that_nobody_knows_says_nothing() -> None:
    bed = Bed(1)
    assert bed.detector.observe(Beat("stranger", 1, 0), bed.now_ms) == []
    assert bed.detector.silence.watched == 1


def test_a_removed_node_is_watched_no_more() -> None:
    bed = Bed(2)
    bed.detector.observe(NodeForgotten("n0"), bed.now_ms)
    bed.mute(["n0"])
    bed.run(30_000)
    assert bed.said == []


def test_verdicts_are_said_again_until_the_log_shows_them() -> None:
    bed = Bed(2, leader=False)
    bed.run(10_000)
    bed.mute(["n0"])
    bed.run(21_000)
    assert bed.kinds().count("NodeSuspect") >= 3
    assert bed.kinds().count("NodeGone") >= 4
    gaps = [b - a for a, b in zip(bed.times(NodeGone), bed.times(NodeGone)[1:], strict=False)]
    assert set(gaps) == {bed.rules.repeat_ms}
    bed.record_node("n0", NodeState.LOST)
    bed.said.clear()
    bed.run(30_000)
    assert bed.said == []


def test_back_is_said_again_until_the_log_shows_it() -> None:
    bed = Bed(2, leader=False)
    bed.record_node("n0", NodeState.SUSPECT)
    bed.run(10_000)
    assert set(bed.kinds()) == {"NodeBack"}
    assert len(bed.said) >= 4
    bed.record_node("n0", NodeState.READY)
    bed.said.clear()
    bed.run(10_000)
    assert bed.said == []


def test_an_agent_that_runs_late_is_excused_by_as_much() -> None:
    bed = Bed(3)
    bed.nodes["n0"].stall_ms = 5_000
    bed.run(20_000)
    bed.mute(["n0"], 9_000)
    bed.run(20_000)
    assert bed.said == []
    bed.mute(["n0"])
    bed.run(30_000)
    assert bed.kinds() == ["NodeSuspect", "NodeGone"]
    assert bed.times(NodeGone)[0] - 40_000 >= LOST_MS + 5_000 - BEAT_MS


def test_an_excuse_has_a_limit() -> None:
    bed = Bed(3)
    bed.nodes["n0"].stall_ms = 600_000
    bed.run(20_000)
    bed.mute(["n0"])
    bed.run(35_000)
    assert bed.kinds() == ["NodeSuspect", "NodeGone"]


# --- our own trouble


@pytest.mark.parametrize("nodes", [1, 2, 3, 100])
def test_nobody_is_judged_while_no_gateway_is_heard(nodes: int) -> None:
    bed = Bed(nodes)
    bed.run(30_000)
    bed.path = False
    bed.run(40_000)
    bed.path = True
    bed.run(60_000)
    assert bed.said == []
    assert bed.detector.restarts == 2  # Once when it was first heard.


def test_a_node_that_does_not_come_back_with_the_gateway_is_gone_a_window_later() -> None:
    bed = Bed(2)
    bed.run(30_000)
    bed.path = False
    bed.mute(["n0"])
    bed.run(40_000)
    bed.path = True
    back_ms = bed.now_ms - START_MS
    bed.run(30_000)
    assert bed.kinds() == ["NodeSuspect", "NodeGone"]
    assert bed.times(NodeSuspect)[0] - back_ms >= 6_000
    assert LOST_MS <= bed.times(NodeGone)[0] - back_ms <= LOST_MS + 4_000


@pytest.mark.parametrize("stalled_ms", [4_000, 40_000, 3 * HOUR_MS])
def test_time_that_we_did_not_look_counts_for_nobody(stalled_ms: int) -> None:
    """Stopped, suspended, or behind: all of a cell is silent to us, whoever beats."""
    bed = Bed(10)
    bed.run(30_000)
    bed.looking = False
    bed.run(stalled_ms)
    bed.looking = True
    bed.run(60_000)
    assert bed.said == []
    assert bed.detector.stalls == 1


def test_a_processor_that_stalls_again_and_again_still_finds_the_dead() -> None:
    bed = Bed(5)
    bed.run(10_000)
    bed.mute(["n3"])
    for _ in range(6):
        bed.looking = False
        bed.run(4_000)
        bed.looking = True
        bed.run(6_000)
    assert bed.kinds() == ["NodeSuspect", "NodeGone"]


def test_before_a_gateway_was_heard_nobody_is_judged() -> None:
    bed = Bed(2)
    bed.path = False
    bed.run(60_000)
    assert bed.said == []
    assert not bed.detector.path_heard


# --- storms


@pytest.mark.parametrize("seed", range(3))
def test_stalls_of_a_day_and_of_the_control_plane_lose_no_node(seed: int) -> None:
    """Gaps of 2 to 8 s on every node, far more often than once a day, and between them stalls of 5 to 40 s of all."""
    dice = random.Random(seed)
    bed = Bed(60)

    def stall(bed: Bed) -> None:
        node = bed.nodes[f"n{dice.randrange(60)}"]
        if dice.random() < 0.05 and node.mute_until_ms < bed.now_ms - 2 * BEAT_MS:
            bed.mute([node.name], dice.randrange(2_000, 8_000))
        if dice.random() < 0.02 and all(
            each.mute_until_ms < bed.now_ms - 2 * BEAT_MS for each in bed.nodes.values()
        ):
            bed.mute(bed.nodes, dice.randrange(5_000, 40_000))

    bed.also.append(stall)
    bed.run(20 * 60_000)
    bed.also.clear()
    bed.run(60_000)
    assert bed.of(NodeGone) == []
    assert len(bed.of(NodeSuspect)) > 5
    assert bed.incident == ""
    assert all(node.state is NodeState.READY for node in bed.nodes.values())


@pytest.mark.parametrize("seed", range(3))
def test_among_a_storm_a_dead_node_is_found(seed: int) -> None:
    dice = random.Random(seed)
    bed = Bed(200)
    bed.also.append(
        lambda bed: (
            bed.mute([f"n{dice.randrange(1, 200)}"], dice.randrange(2_000, 7_000))
            if dice.random() < 0.02
            else None
        )
    )
    bed.run(60_000)
    bed.mute(["n0"])
    bed.run(20_000)
    assert [gone.node for gone in bed.of(NodeGone)] == ["n0"]


# --- the breaker


def silence(bed: Bed, count: int) -> None:
    bed.run(30_000)
    bed.mute([f"n{i}" for i in range(count)])
    bed.run(30_000)


@pytest.mark.parametrize(
    ("nodes", "silent", "mass"),
    [(1, 1, False), (2, 2, False), (3, 2, False), (3, 3, True), (100, 2, False), (100, 3, True), (200, 4, False), (200, 5, True)],
)  # fmt: skip
def test_too_many_at_once_is_an_incident_and_fewer_are_deaths(
    nodes: int, silent: int, mass: bool
) -> None:
    bed = Bed(nodes)
    silence(bed, silent)
    assert bool(bed.of(MassSilence)) == mass
    assert bool(bed.of(NodeGone)) == (not mass)
    assert {each.node for each in bed.of(NodeSuspect)} == {f"n{i}" for i in range(silent)}
    assert bool(bed.incident) == mass


def test_deaths_in_a_row_trip_the_breaker_too() -> None:
    bed = Bed(20)
    bed.run(30_000)
    for i in range(4):
        bed.mute([f"n{i}"])
        bed.run(12_000)
    assert len(bed.of(NodeGone)) <= 2
    assert len(bed.of(MassSilence)) >= 1


def test_deaths_far_apart_do_not() -> None:
    bed = Bed(20)
    bed.run(30_000)
    for i in range(4):
        bed.mute([f"n{i}"])
        bed.run(61_000)
    assert [each.node for each in bed.of(NodeGone)] == ["n0", "n1", "n2", "n3"]
    assert bed.of(MassSilence) == []


def test_an_incident_is_over_when_most_speak_again_and_the_rest_get_a_window() -> None:
    bed = Bed(50)
    bed.run(30_000)
    bed.mute([f"n{i}" for i in range(20)], 60_000)
    bed.mute(["n0"])
    bed.run(75_000)
    assert bed.incident == ""
    (over_ms,) = bed.times(SilenceOver)
    bed.run(30_000)
    assert [gone.node for gone in bed.of(NodeGone)] == ["n0"]
    assert bed.times(NodeGone)[0] - over_ms >= LOST_MS
    assert {back.node for back in bed.of(NodeBack)} == {f"n{i}" for i in range(1, 20)}


def test_those_that_stay_silent_are_given_up_slowly_once_patience_ends() -> None:
    """A rack is dead indeed: half of the cell speaks, so it is not us."""
    bed = Bed(50)
    bed.run(30_000)
    bed.mute([f"n{i}" for i in range(6)])
    bed.run(110_000)
    assert bed.of(NodeGone) == []
    bed.run(300_000)
    assert bed.incident == ""
    assert {each.node for each in bed.of(NodeGone)} == {f"n{i}" for i in range(6)}
    times = bed.times(NodeGone)
    assert all(later - earlier >= 60_000 for earlier, later in zip(times, times[2:], strict=False))


def test_while_most_are_silent_patience_has_no_end() -> None:
    bed = Bed(9)
    silence(bed, 5)
    bed.run(HOUR_MS)
    assert bed.of(NodeGone) == []
    assert bed.incident


def test_an_incident_goes_on_through_a_restart_of_the_processor() -> None:
    bed = Bed(10)
    silence(bed, 8)
    incident = bed.incident
    bed.recover()
    bed.run(60_000)
    assert bed.of(NodeGone) == []
    assert bed.incident == incident
    bed.mute(bed.nodes, 0)
    bed.run(30_000)
    assert bed.incident == ""
    assert all(node.state is NodeState.READY for node in bed.nodes.values())


def test_an_incident_that_nobody_recorded_is_said_again_and_forgotten_when_over() -> None:
    bed = Bed(10, leader=False)
    bed.run(30_000)
    bed.mute([f"n{i}" for i in range(6)], 30_000)
    bed.run(60_000)
    assert len(bed.of(MassSilence)) >= 5
    assert len({each.incident for each in bed.of(MassSilence)}) == 1
    assert bed.kinds().count("SilenceOver") == 1
    assert bed.detector.silence.incident == ""
    assert bed.of(NodeGone) == []


def test_an_incident_that_another_recorded_is_ours() -> None:
    bed = Bed(4)
    bed.record_incident("of-another-judge")
    bed.record_incident("of-another-judge")
    bed.mute(["n0"])
    bed.run(14_000)
    assert bed.of(NodeGone) == []
    bed.run(30_000)  # Three of four speak, so it is over.
    assert bed.incident == ""
    assert [gone.node for gone in bed.of(NodeGone)] == ["n0"]


def test_the_counts_of_the_watch() -> None:
    bed = Bed(4)
    bed.run(10_000)
    bed.mute(["n0"])
    bed.run(9_000)
    assert (bed.detector.silence.watched, bed.detector.silence.silent) == (4, 1)
    bed.run(10_000)
    assert (bed.detector.silence.watched, bed.detector.silence.silent) == (3, 0)


def test_other_numbers_are_kept() -> None:
    bed = Bed(2, Rules(suspect_after_ms=3_000, lost_after_ms=7_000))
    bed.run(10_000)
    bed.mute(["n0"])
    bed.run(9_500)
    assert bed.kinds() == ["NodeSuspect", "NodeGone"]


def test_nodes_are_given_up_no_faster_though_the_log_shows_it_late() -> None:
    bed = Bed(40, leader=False)
    bed.run(4_000)
    for first in (0, 2, 4):  # Never three within a minute: no incident.
        bed.mute([f"n{first}", f"n{first + 1}"])
        bed.run(61_000)
    said = {verdict.node for verdict in bed.of(NodeGone)}
    assert said == {"n0", "n1"}, "while the log does not show them, nobody else goes"
    for name in sorted(said):
        bed.record_node(name, NodeState.LOST)
    recorded_ms = bed.now_ms
    bed.said.clear()
    bed.run(59_000)
    assert bed.of(NodeGone) == []
    bed.run(3_000)
    assert {verdict.node for verdict in bed.of(NodeGone)} == {"n2", "n3"}
    assert bed.now_ms - recorded_ms >= bed.rules.breaker_window_ms


def test_one_who_speaks_again_before_the_log_gives_it_up_makes_room_for_another() -> None:
    bed = Bed(40, leader=False)
    bed.run(4_000)
    bed.mute(["n0", "n1"])
    bed.run(61_000)
    bed.mute(["n2"])
    bed.run(20_000)
    assert {verdict.node for verdict in bed.of(NodeGone)} == {"n0", "n1"}
    bed.nodes["n0"].mute_until_ms = 0
    bed.run(5_000)
    assert "n2" in {verdict.node for verdict in bed.of(NodeGone)}


def two_lost(lost_ms: int) -> Bed:
    """A processor that starts when two nodes have been lost for so long."""
    bed = Bed(40)
    for name in ("n0", "n1"):
        bed.nodes[name].state, bed.nodes[name].lost_ms = NodeState.LOST, lost_ms
    bed.mute(["n0", "n1"])
    bed.recover()
    bed.run(4_000)
    bed.mute(["n2"])
    return bed


def test_what_was_lost_just_before_a_start_counts_among_those_that_fell() -> None:
    bed = two_lost(5_000)
    bed.run(50_000)
    assert bed.of(MassSilence), "three within a minute are an incident, whoever counts"
    assert bed.of(NodeGone) == []


@pytest.mark.parametrize("lost_ms", [(1_000, 55_000), (55_000, 1_000)])
def test_what_was_lost_before_a_start_counts_until_its_window_ends_in_any_order(
    lost_ms: tuple[int, int],
) -> None:
    silence = Silence(Rules())
    for name, ago_ms in zip(("a", "b"), lost_ms, strict=True):
        silence.known(NodeKnown(name, 1, NodeState.LOST, lost_ms=ago_ms), START_MS)
    for i in range(20):
        silence.known(NodeKnown(f"n{i}", 1, NodeState.READY), START_MS)
    gone_ms = 0
    for now_ms in range(START_MS, START_MS + 60_000, TICK_MS):
        for i in range(1, 20):
            silence.beat(Beat(f"n{i}", 1, 0), now_ms)
        if any(isinstance(said, NodeGone) for said in silence.tick(now_ms)):
            gone_ms = now_ms - START_MS
            break
    assert LOST_MS <= gone_ms <= LOST_MS + TICK_MS


def test_what_was_lost_long_before_a_start_does_not_count() -> None:
    bed = two_lost(60_000)
    bed.run(20_000)
    assert [verdict.node for verdict in bed.of(NodeGone)] == ["n2"]
