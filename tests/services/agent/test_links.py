"""Links as sysfs shows them: what is, what changed, and flaps between two looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.agent.links import TURNS_MAX, Links


class Port:
    """One interface of a pretended sysfs."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "ib0"
        self._folder.mkdir()
        self.set("up", 1)

    def set(self, state: str, changes: int) -> None:
        (self._folder / "operstate").write_text(f"{state}\n")
        (self._folder / "carrier_changes").write_text(f"{changes}\n")

    def remove(self) -> None:
        for file in self._folder.iterdir():
            file.unlink()
        self._folder.rmdir()


@pytest.fixture
def port(tmp_path: Path) -> Port:
    return Port(tmp_path)


@pytest.fixture
def links(tmp_path: Path, port: Port) -> Links:
    return Links(["ib0"], tmp_path)


def told(links: Links) -> list[bool]:
    return [change.up for change in links.look()]


def test_what_is_is_told_once(links: Links) -> None:
    assert told(links) == [True]
    assert told(links) == []


def test_down_and_up_are_told_as_they_come(links: Links, port: Port) -> None:
    told(links)
    port.set("down", 2)
    assert told(links) == [False]
    port.set("up", 3)
    assert told(links) == [True]


@pytest.mark.parametrize(("changes", "turns"), [(3, 1), (5, 2), (1001, TURNS_MAX)])
def test_flaps_between_two_looks_are_told_in_order(
    links: Links, port: Port, changes: int, turns: int
) -> None:
    told(links)
    port.set("up", changes)
    assert told(links) == [False, True] * turns


@pytest.mark.parametrize(("changes", "turns"), [(2, 0), (4, 1), (6, 2), (1000, TURNS_MAX)])
def test_flaps_before_a_link_stays_down_are_told_too(
    links: Links, port: Port, changes: int, turns: int
) -> None:
    told(links)
    port.set("down", changes)
    assert told(links) == [False, True] * turns + [False]


def test_an_interface_that_vanishes_is_down(links: Links, port: Port) -> None:
    told(links)
    port.remove()
    assert told(links) == [False]


def test_all_is_told_again_when_asked(links: Links, port: Port) -> None:
    told(links)
    port.set("down", 2)
    told(links)
    links.say_again()
    assert told(links) == [False]
