"""Children as processes: how they are ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from services.up.children import Children, Command, Ended

# Writes NAME.up; at SIGTERM writes NAME.asked and goes once AFTER (a file) is there.
_CHILD: Final = """
import pathlib, signal, sys, time
place, name, after = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[1]) / sys.argv[3]
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
(place / f"{name}.up").touch()
while not asked:
    time.sleep(0.01)
(place / f"{name}.asked").touch()
while not after.exists():
    time.sleep(0.01)
(place / f"{name}.gone").touch()
"""


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children(os.environ)
    yield made
    made.stop(grace_s=0)
    made.close()


def start(children: Children, place: Path, name: str, *, after: str) -> None:
    children.start(Command(name, (sys.executable, "-c", _CHILD, str(place), name, after)))


def wait_for(place: Path, *names: str) -> None:
    end_s = time.monotonic() + 60
    while not all((place / name).exists() for name in names):
        assert time.monotonic() < end_s, f"none of {names}"
        time.sleep(0.01)


def test_all_of_a_kind_are_asked_before_any_is_waited_for(
    children: Children, tmp_path: Path
) -> None:
    start(children, tmp_path, "agent-0", after="agent-1.asked")
    start(children, tmp_path, "agent-1", after="agent-0.asked")
    wait_for(tmp_path, "agent-0.up", "agent-1.up")
    assert children.stop(grace_s=60) == [Ended("agent-1", 0), Ended("agent-0", 0)]


def test_kinds_go_one_after_the_other_the_last_started_first(
    children: Children, tmp_path: Path
) -> None:
    start(children, tmp_path, "scheduler", after="agent-1.gone")
    start(children, tmp_path, "agent-0", after="agent-0.asked")
    start(children, tmp_path, "agent-1", after="agent-1.asked")
    wait_for(tmp_path, "scheduler.up", "agent-0.up", "agent-1.up")
    ended = children.stop(grace_s=60)
    assert [each.name for each in ended] == ["agent-1", "agent-0", "scheduler"]
    assert {each.code for each in ended} == {0}


def test_one_that_outlives_its_grace_is_killed(children: Children, tmp_path: Path) -> None:
    start(children, tmp_path, "health", after="never")
    wait_for(tmp_path, "health.up")
    assert children.stop(grace_s=0.2) == [Ended("health", -9)]
