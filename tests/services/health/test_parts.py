"""Devices: what their events ask for, by the table."""

from __future__ import annotations

import pytest

from services.health.messages import (
    DeviceJudged,
    NodeForgotten,
    SignalKind,
    Signalled,
)
from services.health.table import CONDITION, Action, TableError, parse
from statemachines.device import DeviceState
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


def test_what_the_log_does_not_call_a_return_is_mended_by_a_repair() -> None:
    """Seeds 6378 and 9368: told of a device that was faulty already, it was in no log, and no repair counted ever after."""
    bed = Bed(1)
    bed.run(5_000)
    for code in ("79", "64"):
        bed.signal("n0", XID, code)
        bed.run(5_000)
    bed.signal("n0", SignalKind.DEVICE_MISSING, "present")
    bed.run(5_000)
    bed.signal("n0", XID, "64")
    bed.run(5_000)
    bed.signal("n0", SignalKind.DEVICE_MISSING, "present")
    bed.run(5_000)
    actions = [each.reason.message.rpartition("(")[2] for each in bed.of(DeviceJudged)]
    assert actions == ["reboot_node)", "recovered)", "rma)"]


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
        Signalled("n0", 1, SignalKind.NIC_COUNTER, nic="ib0", code="none_such"),
        Signalled("n0", 1, SignalKind.NIC_COUNTER, nic="eth9", code="symbol_error"),
    ],
    ids=[
        "old incarnation",
        "unknown node",
        "unknown device",
        "no link word",
        "up before",
        "unknown counter",
        "counter of an unknown nic",
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
