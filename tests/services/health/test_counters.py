"""Counters of interfaces: what they ask for lasts until they are quiet, congestion is a fabric's and no port's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.health.messages import DeviceJudged, MassSilence, NicJudged, NodeGone, SignalKind
from services.health.table import TableError, parse
from statemachines.nic import NicState
from statemachines.node import NodeState
from tests.services.health.bed import Bed

MINUTE_MS = 60_000
QUIET_MS = 600_000
SHORT_MS = 150_000


def grow(bed: Bed, node: str, code: str, nic: str = "ib0", age_ms: int = 0) -> None:
    bed.signal(node, SignalKind.NIC_COUNTER, code, nic=nic, message="it grew", age_ms=age_ms)


def said(bed: Bed) -> list[tuple[str, NicState, str]]:
    return [(each.nic, each.condition, each.reason.code) for each in bed.of(NicJudged)]


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("symbol_error", NicState.DEGRADED),
        ("rate_low", NicState.DEGRADED),
        ("rx_dropped", NicState.DEGRADED),
        ("local_link_integrity_errors", NicState.FAULTY),
        ("port_inactive", NicState.FAULTY),
    ],
)
def test_a_crossing_makes_of_its_port_what_the_table_says(code: str, state: NicState) -> None:
    bed = Bed(1)
    bed.run(5_000)
    grow(bed, "n0", code, "ib1")
    bed.run(5_000)
    (verdict,) = bed.of(NicJudged)
    assert (verdict.nic, verdict.condition, verdict.reason.code) == (
        "ib1", state, f"nic_counter_{code}",
    )  # fmt: skip
    assert "it grew" in verdict.reason.message


@pytest.mark.parametrize("code", ["port_rcv_errors", "local_ack_timeout_err", "out_of_sequence"])
def test_what_is_only_watched_changes_nothing(code: str) -> None:
    bed = Bed(1)
    bed.run(5_000)
    for _ in range(10):
        grow(bed, "n0", code)
        bed.run(MINUTE_MS)
    assert bed.said == []


@pytest.mark.parametrize(("code", "quiet_ms"), [("symbol_error", QUIET_MS), ("rate_low", SHORT_MS)])
def test_a_port_is_healthy_again_once_it_was_quiet_and_not_before(code: str, quiet_ms: int) -> None:
    bed = Bed(1)
    bed.run(5_000)
    for _ in range(3):
        grow(bed, "n0", code)
        bed.run(MINUTE_MS)
    bed.run(quiet_ms - MINUTE_MS - 2_000)
    assert [state for _, state, _ in said(bed)] == [NicState.DEGRADED]
    bed.run(5_000)
    assert [state for _, state, _ in said(bed)] == [NicState.DEGRADED, NicState.HEALTHY]


def test_the_worst_that_is_told_counts_and_each_ends_by_itself() -> None:
    bed = Bed(1)
    bed.run(5_000)
    grow(bed, "n0", "symbol_error")
    bed.run(5_000)
    grow(bed, "n0", "port_inactive")
    bed.run(QUIET_MS + 10_000)
    states = [NicState.DEGRADED, NicState.FAULTY, NicState.DEGRADED, NicState.HEALTHY]
    assert [state for _, state, _ in said(bed)] == states


def test_a_link_that_is_back_does_not_end_what_counters_say() -> None:
    bed = Bed(1)
    bed.run(5_000)
    grow(bed, "n0", "symbol_error")
    bed.link("n0", "down")
    bed.run(40_000)
    bed.link("n0", "up")
    bed.run(MINUTE_MS)
    codes = [(state, code) for _, state, code in said(bed)]
    assert codes == [
        (NicState.FAULTY, "port_down"), (NicState.DEGRADED, "nic_counter_symbol_error"),
    ]  # fmt: skip


def test_what_happens_again_asks_for_more() -> None:
    bed = Bed(1)
    bed.run(5_000)
    for expected in ([], [], [NicState.DEGRADED]):
        grow(bed, "n0", "link_error_recovery")
        bed.run(MINUTE_MS)
        assert [state for _, state, _ in said(bed)] == expected


# --- restarts and silence


def test_a_processor_that_starts_again_knows_from_the_log_what_has_to_be_quiet() -> None:
    bed = Bed(1)
    node = bed.nodes["n0"]
    node.nics["ib0"], node.counted = NicState.DEGRADED, (("ib0", "rate_low"),)
    bed.recover()
    bed.run(SHORT_MS - 5_000)
    assert bed.said == []
    bed.run(10_000)
    assert [state for _, state, _ in said(bed)] == [NicState.HEALTHY]


def test_signals_that_are_read_again_count_from_when_they_were_told() -> None:
    bed = Bed(1)
    bed.run(5_000)
    grow(bed, "n0", "symbol_error", age_ms=QUIET_MS - 10_000)
    bed.run(5_000)
    assert [state for _, state, _ in said(bed)] == [NicState.DEGRADED]
    bed.run(10_000)
    assert [state for _, state, _ in said(bed)] == [NicState.DEGRADED, NicState.HEALTHY]


def test_a_port_whose_link_nobody_told_us_of_stays_faulty_whatever_its_counters_say() -> None:
    """It has been down since long before we began."""
    bed = Bed(1)
    bed.nodes["n0"].nics["ib0"] = NicState.FAULTY
    bed.recover()
    bed.run(5_000)
    grow(bed, "n0", "symbol_error")
    bed.run(QUIET_MS + 10_000)
    assert bed.said == []


def test_of_a_node_that_is_lost_nobody_knows_whether_it_is_quiet() -> None:
    bed = Bed(1)
    bed.run(5_000)
    grow(bed, "n0", "rate_low")
    bed.run(5_000)
    bed.record_node("n0", NodeState.LOST)
    bed.run(2 * SHORT_MS)
    assert [state for _, state, _ in said(bed)] == [NicState.DEGRADED]
    bed.rejoin("n0")
    bed.run(SHORT_MS - 5_000)
    assert [state for _, state, _ in said(bed)] == [NicState.DEGRADED]
    bed.run(10_000)
    assert [state for _, state, _ in said(bed)] == [NicState.DEGRADED, NicState.HEALTHY]


# --- many at once


def congest(bed: Bed, count: int, for_min: int, code: str = "port_xmit_discards") -> None:
    for _ in range(for_min):
        for number in range(count):
            grow(bed, f"n{number}", code)
        bed.run(MINUTE_MS)


def test_congestion_on_many_nodes_is_an_incident_within_seconds_and_touches_no_port() -> None:
    bed = Bed(10)
    bed.run(5_000)
    congest(bed, 6, 1)
    assert bed.times(MassSilence)[0] <= 5_000 + 2_000
    first = bed.of(MassSilence)[0]
    assert (first.nodes, first.message) == (6, "6 of 10 nodes tell of a congested fabric")
    assert bed.incident
    bed.run(SHORT_MS)
    assert bed.incident == ""
    assert {type(verdict) for _, verdict in bed.said}.isdisjoint(
        {NicJudged, DeviceJudged, NodeGone}
    )


@pytest.mark.parametrize(("nodes", "congested"), [(10, 2), (60, 6)])
def test_congestion_on_a_few_is_watched_only(nodes: int, congested: int) -> None:
    bed = Bed(nodes)
    bed.run(5_000)
    congest(bed, congested, 3)
    assert bed.said == []


def test_congestion_that_lasts_holds_back_deaths_only_for_so_long() -> None:
    """Who is silent after the patience of an incident is dead indeed, though the fabric is still congested."""
    bed = Bed(10)
    bed.run(5_000)
    bed.mute(["n9"])
    congest(bed, 6, 1)
    assert bed.of(NodeGone) == []
    congest(bed, 6, 4)
    assert [each.node for each in bed.of(NodeGone)] == ["n9"]
    assert bed.incident == ""
    assert len({each.incident for each in bed.of(MassSilence)}) == 1


def test_congestion_that_comes_back_is_another_incident() -> None:
    bed = Bed(10)
    bed.run(5_000)
    for _ in range(2):
        congest(bed, 6, 1)
        bed.run(2 * SHORT_MS)
    assert len({each.incident for each in bed.of(MassSilence)}) == 2


def test_a_processor_that_starts_amid_congestion_goes_on_with_its_incident() -> None:
    bed = Bed(10)
    bed.run(5_000)
    congest(bed, 6, 1)
    known = bed.incident
    bed.recover()
    congest(bed, 6, 1)
    assert {each.incident for each in bed.of(MassSilence)} == {known}


def test_what_many_nodes_call_faulty_at_once_is_at_most_degraded() -> None:
    bed = Bed(10)
    bed.run(5_000)
    for number in range(6):
        grow(bed, f"n{number}", "local_link_integrity_errors")
    bed.run(MINUTE_MS)
    assert {state for _, state, _ in said(bed)} == {NicState.DEGRADED}
    assert len(said(bed)) == 6


def test_a_node_that_is_removed_is_forgotten_with_its_counters() -> None:
    bed = Bed(4)
    bed.run(5_000)
    for node in ("n0", "n1", "n2"):
        grow(bed, node, "rate_low")
        grow(bed, node, "port_xmit_discards")
    bed.forget("n0")
    bed.run(MINUTE_MS)
    assert {verdict.node for verdict in bed.of(NicJudged)} == {"n1", "n2"}
    assert bed.of(MassSilence) == []


CODES = ("symbol_error", "rate_low", "port_inactive", "link_error_recovery", "port_xmit_discards", "rx_dropped")  # fmt: skip
TELLS = st.tuples(
    st.integers(0, 5), st.sampled_from(["ib0", "ib1"]), st.sampled_from(CODES), st.integers(0, 90)
)


@settings(max_examples=30, deadline=None)
@given(st.lists(TELLS, max_size=12), st.booleans())
def test_whatever_is_told_all_is_healthy_once_it_is_quiet_and_congestion_blames_no_port(
    tells: list[tuple[int, str, str, int]],
    restarts: bool,
) -> None:
    bed = Bed(6)
    bed.run(2_000)
    for number, nic, code, after_s in tells:
        grow(bed, f"n{number}", code, nic)
        bed.run(after_s * 1_000)
    if restarts:
        bed.recover()
    bed.run(QUIET_MS + SHORT_MS)
    assert {state for node in bed.nodes.values() for state in node.nics.values()} == {
        NicState.HEALTHY
    }
    blamed = {(each.node, each.nic) for each in bed.of(NicJudged)}
    assert blamed <= {(f"n{n}", nic) for n, nic, code, _ in tells if code != "port_xmit_discards"}
    assert bed.incident == "" and bed.of(NodeGone) == []


# --- the table


@pytest.mark.parametrize(
    ("kind", "code", "action", "why"),
    [
        ("nic_counter", "symbol_error", "rma", "nic_counter symbol_error: rma is not to be asked for"),
        ("nic_counter", "x", "recovered", "recovered is not"),
        ("xid", "79", "fabric", "xid 79: fabric is not to be asked for"),
    ],
)  # fmt: skip
def test_actions_that_mean_nothing_there_are_refused(
    kind: str, code: str, action: str, why: str
) -> None:
    line = f'[[signal]]\nkind = "{kind}"\ncode = "{code}"\nmeaning = "m"\naction = "{action}"\n'
    with pytest.raises(TableError, match=why):
        parse(line, "mine")


def test_less_quiet_than_two_tells_is_refused() -> None:
    line = '[[signal]]\nkind = "nic_counter"\ncode = "x"\nmeaning = "m"\naction = "ignore"\n'
    with pytest.raises(TableError, match="quiet_s"):
        parse(f"{line}quiet_s = 100\n", "mine")
