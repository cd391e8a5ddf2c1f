"""Devices by the table, ports by how long they are down and whether their gangs go on."""

from __future__ import annotations

import pytest

from services.health.messages import (
    AttemptGone,
    DeviceJudged,
    JobHung,
    NicJudged,
    NodeForgotten,
    SignalKind,
    Signalled,
)
from services.health.table import CONDITION, Action, TableError, parse
from statemachines.device import DeviceState
from statemachines.nic import NicState
from tests.services.health.bed import STEP_MS, TABLE, TICK_MS, Bed

XID = SignalKind.XID
# Of the vendor's catalogue, those that the reference has an action for.
FAULTY = ("46", "48", "61", "62", "64", "74", "79", "95", "109", "110", "119", "120", "140", "143")
BLAMELESS = ("13", "31", "43", "45", "92", "93", "94")


def judged(bed: Bed) -> list[tuple[str, int, DeviceState]]:
    return [(each.node, each.index, each.condition) for each in bed.of(DeviceJudged)]


@pytest.mark.parametrize("code", FAULTY)
def test_a_fault_of_the_device_is_said_at_once(code: str) -> None:
    bed = Bed(2)
    bed.run(5_000)
    bed.signal("n1", XID, code, device=1)
    bed.run(3_000)
    assert judged(bed) == [("n1", 1, DeviceState.FAULTY)]
    assert bed.of(DeviceJudged)[0].reason.code == f"xid_{code}"
    assert bed.times(DeviceJudged)[0] <= 5_000 + TICK_MS + STEP_MS


@pytest.mark.parametrize("code", [*BLAMELESS, "9999"])
def test_what_a_program_does_never_blames_the_device(code: str) -> None:
    bed = Bed(2)
    bed.run(5_000)
    bed.signal("n1", XID, code)
    bed.run(60_000)
    assert bed.said == []


def test_a_job_caused_storm_on_many_devices_blames_none() -> None:
    bed = Bed(20)
    bed.run(5_000)
    for i in range(20):
        for code in ("13", "31"):
            bed.signal(f"n{i}", XID, code)
    bed.run(60_000)
    assert bed.said == []


def test_a_reason_says_what_happened_and_what_it_asks_for() -> None:
    bed = Bed(1)
    bed.run(5_000)
    bed.signal("n0", XID, "79", message="GPU 0000:1a")
    bed.run(3_000)
    (verdict,) = bed.of(DeviceJudged)
    assert verdict.reason.message == "fell off the bus: GPU 0000:1a (reboot_node)"


def test_a_condition_is_said_again_until_the_log_shows_it() -> None:
    bed = Bed(1, leader=False)
    bed.run(5_000)
    bed.signal("n0", XID, "79")
    bed.run(10_000)
    assert len(bed.said) >= 4
    bed.nodes["n0"].devices[0] = DeviceState.FAULTY
    bed.tell("n0")
    bed.said.clear()
    bed.run(10_000)
    assert bed.said == []


def test_a_condition_that_the_log_has_is_not_said() -> None:
    bed = Bed(1)
    bed.nodes["n0"].devices[0] = DeviceState.FAULTY
    bed.tell("n0")
    bed.run(5_000)
    bed.signal("n0", XID, "79")
    bed.signal("n0", XID, "63")  # Only degraded; what is worse is known.
    bed.run(5_000)
    assert bed.said == []


def test_a_contained_error_that_comes_back_asks_for_more() -> None:
    bed = Bed(1)
    bed.run(5_000)
    for _ in range(2):
        bed.signal("n0", XID, "94")
        bed.run(5_000)
    assert bed.said == []
    bed.signal("n0", XID, "94")
    bed.run(5_000)
    assert judged(bed) == [("n0", 0, DeviceState.FAULTY)]
    assert "(reset_device)" in bed.of(DeviceJudged)[0].reason.message


def reboots(bed: Bed) -> None:
    """The device falls off the bus, and is there again after a reboot."""
    bed.signal("n0", XID, "79")
    bed.run(5_000)
    bed.signal("n0", SignalKind.DEVICE_MISSING, "present")
    bed.run(5_000)


def test_a_device_that_two_reboots_did_not_mend_is_to_be_replaced() -> None:
    bed = Bed(1)
    bed.run(5_000)
    for _ in range(3):
        reboots(bed)
    said = [
        (each.condition, each.reason.message.rpartition(" ")[2]) for each in bed.of(DeviceJudged)
    ]
    reboot, back = (DeviceState.FAULTY, "(reboot_node)"), (DeviceState.HEALTHY, "(recovered)")
    assert said == [reboot, back, reboot, back, (DeviceState.FAULTY, "(rma)")]


def test_a_fault_that_is_told_again_and_again_is_one() -> None:
    bed = Bed(1)
    bed.run(5_000)
    for _ in range(10):
        bed.signal("n0", XID, "79")
        bed.run(2_000)
    reboots(bed)
    assert [each.condition for each in bed.of(DeviceJudged)] == [
        DeviceState.FAULTY,
        DeviceState.HEALTHY,
    ]


def test_what_follows_at_once_does_not_make_a_fault_smaller() -> None:
    bed = Bed(1)
    bed.run(5_000)
    for code in ("48", "63", "94"):  # Before the log could show the first.
        bed.signal("n0", XID, code)
    bed.run(5_000)
    assert judged(bed) == [("n0", 0, DeviceState.FAULTY)]


def test_another_card_in_its_place_is_judged_as_any() -> None:
    bed = Bed(1)
    bed.run(5_000)
    bed.signal("n0", XID, "64")
    bed.run(5_000)
    bed.nodes["n0"].devices[0] = DeviceState.HEALTHY  # As the fold has a card that it never saw.
    bed.tell("n0")
    bed.said.clear()
    reboots(bed)
    assert [each.condition for each in bed.of(DeviceJudged)] == [
        DeviceState.FAULTY,
        DeviceState.HEALTHY,
    ]


def test_a_removed_node_takes_what_was_to_be_replaced_with_it() -> None:
    bed = Bed(1)
    bed.run(5_000)
    bed.signal("n0", XID, "64")
    bed.run(5_000)
    bed.detector.observe(NodeForgotten("n0"), bed.now_ms)
    bed.tell("n0")
    bed.said.clear()
    bed.signal("n0", SignalKind.DEVICE_MISSING, "present")
    bed.run(5_000)
    assert [each.condition for each in bed.of(DeviceJudged)] == [DeviceState.HEALTHY]


def test_what_comes_back_a_day_later_counts_as_once() -> None:
    bed = Bed(1)
    bed.run(5_000)
    for age_ms in (2 * 86_400_000, 100_000_000, 0):
        bed.signal("n0", XID, "94", age_ms=age_ms)
    bed.run(5_000)
    assert bed.said == []


def test_one_devices_errors_do_not_count_for_another() -> None:
    bed = Bed(2)
    bed.run(5_000)
    for node, device in (("n0", 0), ("n0", 1), ("n1", 0)):
        bed.signal(node, XID, "94", device=device)
    bed.run(5_000)
    assert bed.said == []


def test_two_reboots_that_do_not_help_end_in_a_return() -> None:
    bed = Bed(1)
    bed.run(5_000)
    for _ in range(3):
        bed.signal("n0", XID, "79")
        bed.run(5_000)
        bed.nodes["n0"].devices[0] = DeviceState.HEALTHY
        bed.tell("n0")
    actions = [each.reason.message.rpartition("(")[2] for each in bed.of(DeviceJudged)]
    assert actions == ["reboot_node)", "reboot_node)", "rma)"]


def test_a_switch_of_the_node_concerns_all_its_devices() -> None:
    table = parse('[[signal]]\nkind = "sxid"\nmeaning = "switch"\naction = "reset_device"', "test")
    bed = Bed(1)
    bed.detector.parts._table = table
    bed.run(5_000)
    bed.signal("n0", SignalKind.SXID, "20034")
    bed.run(3_000)
    assert judged(bed) == [("n0", 0, DeviceState.FAULTY), ("n0", 1, DeviceState.FAULTY)]


def test_a_device_that_failed_its_probe_recovers_when_it_passes() -> None:
    bed = Bed(1)
    bed.run(5_000)
    bed.signal("n0", SignalKind.PROBE_FAILED, message="no answer")
    bed.run(3_000)
    bed.signal("n0", SignalKind.PROBE_FAILED, "passed")
    bed.run(3_000)
    assert judged(bed) == [("n0", 0, DeviceState.FAULTY), ("n0", 0, DeviceState.HEALTHY)]


@pytest.mark.parametrize(
    "signal",
    [
        Signalled("n0", 0, XID, code="79"),
        Signalled("n9", 1, XID, code="79"),
        Signalled("n0", 1, XID, device=7, code="79"),
        Signalled("n0", 1, SignalKind.NIC_LINK, nic="eth9", code="sideways"),
        Signalled("n0", 1, SignalKind.NIC_LINK, nic="ib0", code="up"),
        Signalled("n0", 1, SignalKind.NIC_COUNTER, nic="ib0", code="symbol_error"),
    ],
    ids=[
        "old incarnation",
        "unknown node",
        "unknown device",
        "no link word",
        "up before",
        "counter",
    ],
)
def test_signals_that_say_nothing(signal: Signalled) -> None:
    bed = Bed(1)
    bed.run(5_000)
    bed.detector.observe(signal, bed.now_ms)
    bed.run(60_000)
    assert bed.said == []


def test_a_removed_node_takes_its_parts_along() -> None:
    bed = Bed(2, leader=False)
    bed.run(5_000)
    bed.signal("n0", XID, "79")
    bed.signal("n0", XID, "94")
    bed.link("n0", "down")
    bed.detector.observe(NodeForgotten("n0"), bed.now_ms)
    bed.run(60_000)
    assert bed.said == []


# --- ports


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


# --- the table


def test_every_action_has_a_condition_or_blames_nobody() -> None:
    assert set(CONDITION) == set(Action)


@pytest.mark.parametrize("code", [*FAULTY, *BLAMELESS, "63"])
def test_the_shipped_table_knows_the_event(code: str) -> None:
    line = TABLE.find(XID, code)
    assert line is not None
    assert line.code == code


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[signal]]\nkind = 'xid'\nmeaning = 'x'\naction = 'explode'", "test: Invalid enum value"),
        ("[[signal]]\nkind = 'xid'\nmeaning = 'x'", "test: Object missing required field `action`"),
        (
            "[[signal]]\nkind = 'xid'\nmeaning = 'x'\naction = 'rma'\ncolour = 'red'",
            "unknown field",
        ),
        ("[[signal]", "test: "),
        (
            "[[signal]]\nkind='xid'\nmeaning='x'\naction='rma'\n" * 2,
            "two lines of one kind and code",
        ),
    ],
    ids=["action", "missing", "unknown field", "not TOML", "twice"],
)
def test_a_table_that_cannot_be_used_says_why(text: str, problem: str) -> None:
    with pytest.raises(TableError, match=problem):
        parse(text, "test")
