"""Counters as sysfs shows them: growth within a window is told once a minute, resets and what is missing never."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.agent.counters import (
    AGAIN_MS,
    Counters,
    CountersError,
    Crossing,
    Line,
    Reading,
    Table,
    parse,
)
from services.agent.inventory import nics, rate_mbps
from services.agent.service import AgentServiceSettings, load_table
from services.runtime.settings import SettingsError
from statemachines.values import NicSpec

NIC = NicSpec("ib0", 400_000, kind="infiniband")
TABLE = Table((Line("symbol_error", over_s=10, most=100),))
LOOK_MS = 5_000


class Port:
    """One interface of a pretended sysfs, with the RDMA port behind it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "ib0"
        self.port = self.folder / "device/infiniband/mlx5_0/ports/1"
        for each in (self.folder / "statistics", self.port / "counters", self.port / "hw_counters"):
            each.mkdir(parents=True)
        self.write("ib0/operstate", "up")
        self.write("ib0/speed", "100000")
        self.rdma("state", "4: ACTIVE")
        self.rdma("phys_state", "5: LinkUp")
        self.rdma("rate", "400 Gb/sec (4X NDR)")

    def write(self, name: str, text: str) -> None:
        (self.folder.parent / name).write_text(f"{text}\n")

    def rdma(self, name: str, text: str) -> None:
        (self.port / name).write_text(f"{text}\n")


@pytest.fixture
def port(tmp_path: Path) -> Port:
    return Port(tmp_path)


def judged(counts: list[int | None], table: Table = TABLE, every_ms: int = LOOK_MS) -> list[int]:
    """What is told at looks at these counts: the values."""
    counters, told = Counters(table, [NIC]), []
    for at, count in enumerate(counts):
        shown: Mapping[str, int] = {} if count is None else {"symbol_error": count}
        reading = Reading("ib0", 400_000, shown)
        told += [each.value for each in counters.judge([reading], 1_000 + at * every_ms)]
    return told


def test_growth_beyond_what_is_borne_is_told_with_its_amount() -> None:
    counters = Counters(TABLE, [NIC])
    assert counters.judge([Reading("ib0", 400_000, {"symbol_error": 5})], 0) == []
    (told,) = counters.judge([Reading("ib0", 400_000, {"symbol_error": 106})], LOOK_MS)
    assert told == Crossing(
        "ib0", "symbol_error", 101, "symbol_error grew by 101 within 10 s, more than 100"
    )


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([70_000], []),
        ([0, 100], []),
        ([0, 60, 120], [120]),
        ([0, 60, 60, 120], []),
        ([0, 60, 119, 119, 119], [119]),
        ([500, 0, 100, 100], []),
        ([4_294_967_290, 3, 90], []),
        ([None, 700, 750], []),
        ([0, None, 700, 750], []),
        ([0, 60, None, None, 700], []),
    ],
    ids=[
        "what was there before", "as much as is borne", "over two looks", "spread", "it stays what it is",
        "a reset", "a wrap", "it appears", "it was missing", "missing amid a window",
    ],
)  # fmt: skip
def test_only_growth_within_the_window_counts(counts: list[int | None], told: list[int]) -> None:
    assert judged(counts) == told


def test_a_crossing_is_told_once_a_minute_while_it_goes_on_and_to_whoever_is_new() -> None:
    counters = Counters(TABLE, [NIC])

    def look(at_ms: int) -> int:
        return len(counters.judge([Reading("ib0", 0, {"symbol_error": at_ms})], at_ms))

    told = [at_ms for at_ms in range(0, 2 * AGAIN_MS + LOOK_MS, LOOK_MS) if look(at_ms)]
    assert told == [LOOK_MS, LOOK_MS + AGAIN_MS]
    counters.say_again()
    assert look(2 * AGAIN_MS + LOOK_MS) == 1


def test_growth_while_nobody_looked_counts_by_its_share() -> None:
    """An agent that was stopped for a minute must not take a minute's growth for ten seconds'."""
    assert judged([0, 500], every_ms=60_000) == []
    assert judged([0, 700], every_ms=60_000) == [116]


def test_two_lines_of_one_counter_have_windows_of_their_own() -> None:
    slow = Line("symbol_error", over_s=3_600, most=120, code="symbol_error_hourly")
    assert judged([0, 60, 60, 119, 119, 121], Table((*TABLE.counter, slow))) == [121]


@given(st.lists(st.integers(0, 2**33), max_size=40), st.integers(0, 300))
def test_what_is_told_is_the_growth_of_the_window(counts: list[int], most: int) -> None:
    grown = [0] + [max(after - before, 0) for before, after in itertools.pairwise(counts)]
    expected: list[int] = []
    told_at = -AGAIN_MS
    for at in range(len(counts)):
        amount = sum(grown[max(at - 1, 0) : at + 1])
        if amount > most and at * LOOK_MS - told_at >= AGAIN_MS:
            expected.append(amount)
            told_at = at * LOOK_MS
    assert judged(list(counts), Table((Line("symbol_error", over_s=10, most=most),))) == expected


# --- sysfs


def test_counters_are_found_where_each_kind_has_them(tmp_path: Path, port: Port) -> None:
    port.write("ib0/statistics/rx_dropped", "7")
    port.rdma("counters/symbol_error", "8")
    port.rdma("hw_counters/roce_slow_restart", "9")
    port.rdma("counters/port_rcv_errors", "N/A (no PMA)")
    names = ("rx_dropped", "symbol_error", "roce_slow_restart", "port_rcv_errors", "none_such")
    table = Table(tuple(Line(name, over_s=10, most=0) for name in names))
    (reading,) = Counters(table, [NIC], tmp_path).read()
    counts = {"rx_dropped": 7, "symbol_error": 8, "roce_slow_restart": 9}
    assert reading == Reading("ib0", 400_000, counts)


def test_an_interface_that_is_gone_or_has_no_counters_says_nothing(tmp_path: Path) -> None:
    counters = Counters(TABLE, [NIC, NicSpec("lo", 0, kind="loopback")], tmp_path)
    assert counters.read() == [Reading("ib0", 0, {})]
    assert counters.judge(counters.read(), 0) == []


def test_a_port_slower_than_the_inventory_says_is_told(tmp_path: Path, port: Port) -> None:
    counters = Counters(Table(), nics(("ib0",), tmp_path), tmp_path)
    assert counters.judge(counters.read(), 0) == []
    port.rdma("rate", "200 Gb/sec (4X HDR)")
    (told,) = counters.judge(counters.read(), LOOK_MS)
    assert told == Crossing("ib0", "rate_low", 200_000, "200000 Mb/s of 400000")
    port.rdma("rate", "400 Gb/sec (4X NDR)")
    counters.say_again()
    assert counters.judge(counters.read(), LOOK_MS) == []


def test_a_table_may_say_what_ports_should_run_at(tmp_path: Path, port: Port) -> None:
    """Else an agent that starts while a port is slow takes that for what it should be."""
    port.rdma("rate", "200 Gb/sec (4X HDR)")
    slow = nics(("ib0",), tmp_path)
    assert Counters(Table(), slow, tmp_path).judge([Reading("ib0", 200_000, {})], 0) == []
    (told,) = Counters(Table(rate_mbps=400_000), slow).judge([Reading("ib0", 200_000, {})], 0)
    assert told.value == 200_000


def test_a_port_that_is_down_is_the_links_business(tmp_path: Path, port: Port) -> None:
    counters = Counters(Table(), nics(("ib0",), tmp_path), tmp_path)
    port.write("ib0/operstate", "down")
    port.rdma("rate", "2.5 Gb/sec (1X SDR)")
    port.rdma("state", "1: DOWN")
    assert counters.judge(counters.read(), 0) == []


def test_a_port_that_its_interface_calls_up_and_that_is_not_active_is_told(
    tmp_path: Path, port: Port
) -> None:
    counters = Counters(Table(), nics(("ib0",), tmp_path), tmp_path)
    port.rdma("state", "2: INIT")
    (told,) = counters.judge(counters.read(), 0)
    assert (told.code, told.message) == ("port_inactive", "its port is INIT (LinkUp)")


def test_a_port_is_the_one_that_its_interface_names_or_the_first(
    tmp_path: Path, port: Port
) -> None:
    second = port.folder / "device/infiniband/mlx5_0/ports/2"
    second.mkdir()
    (second / "rate").write_text("2.5 Gb/sec (1X SDR)\n")
    assert rate_mbps(port.folder) == 400_000
    port.write("ib0/dev_port", "1")
    assert rate_mbps(port.folder) == 2_500
    port.write("ib0/dev_port", "7")
    assert rate_mbps(port.folder) == 400_000


def test_without_an_rdma_port_the_interface_says_its_speed(tmp_path: Path) -> None:
    (tmp_path / "eth0").mkdir()
    (tmp_path / "eth0/operstate").write_text("up\n")
    (tmp_path / "eth0/speed").write_text("25000\n")
    assert rate_mbps(tmp_path / "eth0") == 25_000
    (tmp_path / "eth0/speed").write_text("-1\n")
    assert rate_mbps(tmp_path / "eth0") == 0


# --- the table


def test_the_shipped_table_is_sound() -> None:
    codes = {line.told_as for line in load_table(AgentServiceSettings()).counter}
    assert {"symbol_error", "symbol_error_hourly", "port_xmit_discards", "rx_dropped"} <= codes


def test_an_operator_may_bring_another_table(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[counter]]\ncounter = "mine"\nover_s = 30\nmost = 3\n')
    mine = load_table(AgentServiceSettings(counters_file=str(file)))
    assert mine == Table((Line("mine", over_s=30, most=3),))
    with pytest.raises(SettingsError, match=r"setting counters_file: .*No such file"):
        load_table(AgentServiceSettings(counters_file=str(tmp_path / "none.toml")))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[counter]", "mine: "),
        ('[[counter]]\ncounter = "../x"\nover_s = 10\nmost = 0', "counter"),
        ('[[counter]]\ncounter = "x"\nover_s = 1\nmost = 0', "over_s"),
        ('[[counter]]\ncounter = "x"\nover_s = 10\nmost = 0\nmsot = 1', "msot"),
        ('[[counter]]\ncounter = "x"\nover_s = 10\nmost = 0\n' * 2, "x is told by two lines"),
        ('[[counter]]\ncounter = "rate_low"\nover_s = 10\nmost = 0', "rate_low is told by two"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(CountersError, match=why):
        parse(text, "mine")
