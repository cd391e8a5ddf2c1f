"""Every scenario's expectations hold, and an expectation that does not hold is said in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import scenarios
from simulation.history import play
from simulation.referee import Event
from simulation.scenario import Check

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    "name", [name for name in scenarios.simulated() if name != scenarios.DEFAULT]
)
def test_scenario_holds(name: str) -> None:
    assert play(scenarios.load(name), 1).verdict.broken == ()


def test_unknown_scenarios_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(scenarios.UnknownScenarioError, match="did you mean 'freeze'"):
        scenarios.load("freese")


def test_a_check_says_what_it_expected_and_saw() -> None:
    check = Check(fact="NodeLost", subject="job-0", at_most=0, why="nobody died")
    events = [Event(1_500, "NodeLost", "real-name"), Event(2_000, "NodeLost", "another")]
    assert check.failure(events, {"job-0": "real-name"}) == (
        "expected at most 0 of [NodeLost job-0], saw 1 at 1.5 s: nobody died"
    )
    assert check.failure(events[1:], {"job-0": "real-name"}) == ""


@pytest.mark.parametrize("name", scenarios.names())
def test_every_file_can_be_loaded(name: str) -> None:
    assert scenarios.load(name).summary


@pytest.mark.parametrize(
    ("check", "why"),
    [
        ('fact = "NodeLost"', "of NodeLost holds whatever happens: give it at_least"),
        ('fact = "NodeLost"\nat_least = 0', "of NodeLost holds whatever happens: give it at_least"),
        ('fact = "NodeLots"\nat_most = 0', "shows no 'NodeLots'; it shows .*NodeLost"),
        ('fact = "JobWaiting"\nat_most = 0', "shows no 'JobWaiting'"),
        ('fact = "NodeLost"\nat_most = 0\nfrom_s = 9\nuntil_s = 3', "from 9 s until 3 s"),
    ],
)
def test_a_check_that_cannot_fail_is_refused(check: str, why: str, tmp_path: Path) -> None:
    text = f'summary = "any"\n[[check]]\nwhy = "it matters"\n{check}\n'
    (tmp_path / "vain.toml").write_text(text, encoding="utf-8")
    with pytest.raises(scenarios.UnknownScenarioError, match=why) as refused:
        scenarios.load("vain", tmp_path)
    assert "vain.toml" in str(refused.value)


@pytest.mark.parametrize("kind", ["final", "fault", "healed", "void", "RunEnded"])
def test_a_check_may_be_of_all_that_a_timeline_shows(kind: str) -> None:
    events = [Event(1, kind, "someone")]
    assert Check(fact=kind, at_least=1, why="seen").failure(events, {}) == ""


@pytest.mark.parametrize(
    ("detail", "said", "fits"),
    [
        ("20", "20", True),
        ("20", "120", False),
        ("20", "200", False),
        ("step 2", "2 members from step 20 on n0000", False),
        ("from step 0 ", "2 members from step 0 on n0000", True),
        ("-> queued", "node_lost -> queued", True),
        ("", "anything", True),
        ("", "", True),
    ],
)
def test_the_words_of_a_detail_are_whole(detail: str, said: str, fits: bool) -> None:
    check = Check(fact="GangPlaced", detail=detail, at_least=1, why="seen")
    assert (check.failure([Event(1, "GangPlaced", "job", said)], {}) == "") == fits
