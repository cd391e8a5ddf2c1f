"""The page of a history: every node and job has its row, faults are as long as they last, names are those of the scenario."""

from __future__ import annotations

import msgspec
import pytest

from chaos import report, scenarios
from simulation.faults import Fault
from simulation.history import KINDS, History, play
from simulation.scenario import Scenario

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def played() -> tuple[Scenario, History]:
    scenario = scenarios.load("lemon")
    return scenario, play(scenario, 1)


def page(played: tuple[Scenario, History], **changes: object) -> str:
    scenario, history = played
    changed = msgspec.structs.replace(history, **changes)
    return report.html("lemon", scenario, changed, "the command", drawn=2)


def test_nodes_jobs_terms_and_faults_have_their_rows(played: tuple[Scenario, History]) -> None:
    html = page(played)
    for name in ("n0000", "n0005", "job-0", "job-4", "leader", "fails under load"):
        assert f">{name}</text>" in html
    assert "all promises kept" in html
    assert "healed: no more faults" in html
    assert "<code>the command</code>" in html
    assert "n0000 cordoned" in html


def test_a_history_of_fewer_faults_says_so(played: tuple[Scenario, History]) -> None:
    assert "The fewest faults that break it: 1 of 2" in page(played)


def test_what_is_broken_is_said_and_escaped(played: tuple[Scenario, History]) -> None:
    events = tuple(event for event in played[1].events if event.kind != "healed")
    verdict = msgspec.structs.replace(played[1].verdict, broken=("A: <device>", "check: no"))
    html = page(played, verdict=verdict, events=events)
    assert '<p class="bad">A: &lt;device&gt;<br>check: no</p>' in html
    assert ">broken</text>" in html


def test_faults_are_as_long_as_they_last(played: tuple[Scenario, History]) -> None:
    scenario, history = played
    plan = (Fault(5_000, "kill leader", 7, 4_000), Fault(9_000, "broker down", 600_000, 4_000))
    setup = msgspec.structs.replace(history.setup, plan=plan)
    html = page((scenario, history), setup=setup)
    assert "<b>5.0 s</b>kill leader, target 7<" in html
    assert "<b>9.0 s</b>broker down for 4 s<" in html


def test_every_fault_that_is_over_at_once_is_known() -> None:
    assert set(KINDS) > report._AT_ONCE
