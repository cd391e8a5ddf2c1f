"""Seeds that found defects of the services stay found, and a few that nobody has tried yet are tried every day."""

from __future__ import annotations

import datetime as dt

import pytest

from chaos import scenarios
from simulation.history import play
from simulation.world import Verdict

pytestmark = pytest.mark.timeout(600)

# (scenario, seed): what it found once. Setups drift with the model, so each stands for its kind of history too.
REGRESSIONS = {
    (
        "anything",
        29,
    ): "an attach of an earlier boot, published late, passed for a reboot and ended runs that lived",
    ("late-verdicts", 2): "the same, by inputs that are repeated",
    ("agent-restarts", 2): "state that was not on disk after all",
}
FRESH = 12


def _check(verdict: Verdict, scenario: str) -> None:
    replay = f"python -m chaos sim {scenario} --seeds 1 --first-seed {verdict.seed}"
    assert not verdict.broken, f"{verdict.broken[:3]}; replay: {replay}"


@pytest.mark.parametrize(("scenario", "seed"), list(REGRESSIONS))
def test_seeds_that_found_a_defect_find_none(scenario: str, seed: int) -> None:
    _check(play(scenarios.load(scenario), seed).verdict, scenario)


@pytest.mark.parametrize("seed", range(1, 9))
def test_fixed_seeds_keep_every_promise(seed: int) -> None:
    _check(play(scenarios.load("anything"), seed).verdict, "anything")


@pytest.mark.parametrize("number", range(FRESH))
def test_seeds_of_the_day_keep_every_promise(number: int) -> None:
    seed = dt.datetime.now(tz=dt.UTC).toordinal() * 1_000 + number
    print(f"seed of the day: {seed}")
    _check(play(scenarios.load("anything"), seed).verdict, "anything")
