"""Ports: faulty by how long they are down, or because the gang that they went down under stands still."""

from __future__ import annotations

import pytest

from services.health.messages import (
    AttemptGone,
    JobHung,
    NicJudged,
    SignalKind,
)
from statemachines.nic import NicState
from tests.services.health.bed import STEP_MS, TICK_MS, Bed


def ports(bed: Bed) -> list[tuple[str, NicState, str]]:
    return [(each.nic, each.condition, each.reason.code) for each in bed.of(NicJudged)]


def train(bed: Bed, *, every_ms: int = 2_000, attempt: int = 1) -> None:
    """A gang of two makes steps."""
    bed.start("j", on=("n0", "n1"), attempt=attempt)
    bed.also.append(
        lambda bed: (
            bed.step("j", bed.now_ms, attempt=attempt) if bed.now_ms % every_ms < STEP_MS else None
        )
    )
    bed.run(30_000)


def pause(bed: Bed, for_ms: int) -> None:
    """The gang saves, compiles, loads: no step meanwhile."""
    steps, bed.also = bed.also, []
    bed.run(for_ms)
    bed.also = steps


@pytest.mark.parametrize("down_ms", [2_000, 20_000, 33_000])
def test_a_flap_that_the_gang_survives_changes_nothing(down_ms: int) -> None:
    bed = Bed(2)
    train(bed)
    bed.link("n0", "down")
    bed.run(down_ms)
    bed.link("n0", "up")
    bed.run(120_000)
    assert bed.said == []


def test_a_port_that_stays_down_is_faulty_and_evicts_nobody_who_goes_on() -> None:
    bed = Bed(2)
    train(bed)
    bed.link("n0", "down")
    bed.run(60_000)
    assert ports(bed) == [("ib0", NicState.FAULTY, "port_down")]
    assert 35_000 <= bed.times(NicJudged)[0] - 30_000 <= 35_000 + TICK_MS + 2_000
    assert bed.of(JobHung) == []


def test_a_port_that_is_down_while_its_gang_stands_still_is_faulty_at_once() -> None:
    bed = Bed(3)
    train(bed)
    bed.link("n0", "down")
    bed.also.clear()
    bed.run(20_000)
    assert bed.kinds() == ["NicJudged", "JobHung"]
    assert bed.times(JobHung)[0] - 30_000 <= 10_000 + TICK_MS + 2_000
    assert bed.of(JobHung)[0].job == "j"


def test_a_gang_is_not_called_hung_before_the_log_shows_its_port() -> None:
    """Else the leader may hear of the gang first, take it for the program's fault, and start it there again."""
    bed = Bed(3)
    train(bed)
    bed.link("n0", "down")
    bed.also.clear()
    bed.leader = False
    bed.run(30_000)
    assert set(bed.kinds()) == {"NicJudged"}
    bed.leader = True
    bed.run(5_000)
    assert bed.kinds()[-1] == "JobHung"


def test_a_hang_over_a_port_names_the_port() -> None:
    bed = Bed(3)
    train(bed)
    bed.link("n0", "down")
    pause(bed, 20_000)
    (hung,) = bed.of(JobHung)
    assert (hung.node, hung.nic) == ("n0", "ib0")


def test_a_port_that_was_down_before_the_gang_began_explains_nothing() -> None:
    """Else every load, compile and save of 10 s on such a node would cost an attempt, for ever."""
    bed = Bed(3)
    bed.run(5_000)
    bed.link("n0", "down")
    bed.run(60_000)
    train(bed)
    for _ in range(3):
        pause(bed, 25_000)
        bed.run(30_000)
    assert bed.kinds() == ["NicJudged"]


def test_a_gang_that_began_on_a_port_that_is_down_and_not_yet_faulty_does_not_wait_for_it() -> None:
    bed = Bed(3)
    bed.run(5_000)
    bed.link("n0", "down")
    bed.run(2_000)
    train(bed)
    pause(bed, 25_000)
    assert bed.kinds() == ["NicJudged"]


def test_a_gang_that_went_on_without_a_port_does_not_wait_for_it_later() -> None:
    bed = Bed(3)
    train(bed)
    bed.link("n0", "down")
    bed.run(60_000)
    pause(bed, 15_000)
    bed.run(60_000)
    assert bed.kinds() == ["NicJudged"]


def test_a_stall_is_known_by_a_processor_that_starts_amid_it() -> None:
    """How long the gang runs is in the log; how long the port is down, in its signal."""
    bed = Bed(3)
    train(bed)
    bed.link("n0", "down")
    bed.also.clear()
    bed.run(5_000)
    bed.recover()
    bed.step("j", bed.now_ms)
    bed.signal("n0", SignalKind.NIC_LINK, "down", nic="ib0", age_ms=5_000)
    bed.run(20_000)
    assert bed.kinds() == ["NicJudged", "JobHung"]


def test_a_gang_that_ended_is_not_looked_at_when_a_port_goes_down() -> None:
    bed = Bed(3)
    train(bed)
    bed.detector.observe(AttemptGone("j"), bed.now_ms)
    bed.link("n0", "down")
    bed.run(60_000)
    assert bed.kinds() == ["NicJudged"]


@pytest.mark.parametrize("cabled", [False, True])
def test_a_port_that_never_had_a_link_is_no_fault(*, cabled: bool) -> None:
    bed = Bed(2)
    bed.nodes["n0"].unlinked = ("ib1",)
    bed.recover()
    bed.link("n0", "down", "ib1")
    bed.run(60_000)
    assert bed.said == []
    if cabled:
        bed.link("n0", "up", "ib1")
        bed.run(20_000)
    bed.link("n0", "down", "ib1")
    bed.run(60_000)
    assert ports(bed) == [("ib1", NicState.FAULTY, "port_down")] * cabled


def test_a_gang_with_slow_steps_is_given_time_for_one() -> None:
    bed = Bed(2)
    train(bed, every_ms=10_000)
    bed.link("n0", "down")
    bed.run(30_000)
    assert bed.said == []


def test_a_gang_elsewhere_and_one_that_never_made_a_step_wait_for_no_port() -> None:
    bed = Bed(4)
    bed.start("silent", on=("n0", "n1"))
    bed.start("single", on=("n0",))
    bed.start("far", on=("n2", "n3"))
    for job in ("single", "far"):
        bed.step(job, 1)
    bed.run(5_000)
    bed.link("n0", "down")
    bed.run(60_000)
    assert bed.kinds() == ["NicJudged"]


def test_a_port_is_back_once_it_was_up_for_a_while() -> None:
    bed = Bed(2)
    bed.run(5_000)
    bed.link("n0", "down")
    bed.run(40_000)
    bed.link("n0", "up")
    bed.run(5_000)
    assert len(bed.said) == 1
    bed.run(10_000)
    expected = [("ib0", NicState.FAULTY, "port_down"), ("ib0", NicState.HEALTHY, "port_up")]
    assert ports(bed) == expected


def test_a_port_that_flaps_is_degraded_until_it_has_been_quiet() -> None:
    bed = Bed(2)
    bed.run(5_000)
    for _ in range(3):
        bed.link("n0", "down")
        bed.link("n0", "down")  # Said twice, counted once.
        bed.run(2_000)
        bed.link("n0", "up")
        bed.run(20_000)
    assert ports(bed) == [("ib0", NicState.DEGRADED, "port_flaps")]
    assert bed.of(NicJudged)[0].reason.message == "down 3 times within 60 min"
    bed.run(3_600_000)
    assert ports(bed)[1:] == [("ib0", NicState.HEALTHY, "port_up")]


def test_a_ports_condition_is_said_again_until_the_log_shows_it() -> None:
    bed = Bed(2, leader=False)
    bed.run(5_000)
    bed.link("n0", "down")
    bed.run(45_000)
    assert len(bed.said) >= 3
    bed.nodes["n0"].nics["ib0"] = NicState.FAULTY
    bed.tell("n0")
    bed.said.clear()
    bed.run(30_000)
    assert bed.said == []


def test_a_port_that_was_down_before_we_started_is_as_old_as_it_says() -> None:
    bed = Bed(2)
    bed.run(5_000)
    bed.signal("n0", SignalKind.NIC_LINK, "down", nic="ib1", age_ms=40_000)
    bed.run(3_000)
    assert ports(bed) == [("ib1", NicState.FAULTY, "port_down")]
