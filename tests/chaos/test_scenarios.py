"""Every scenario's expectations hold, and an expectation that does not hold is said in words."""

from __future__ import annotations

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
