"""The advised interval, against published optima and against the formula itself."""

from __future__ import annotations

import math

import pytest

from services.gateway.advice import interval_ms, optimum_s
from statemachines.checkpoint import Checkpoint, CheckpointState
from statemachines.values import JobId

RATE = 3.79  # 419 faults in 54 days on 2,048 nodes.


def saved(step: int, save_ms: int) -> Checkpoint:
    return Checkpoint(JobId("j"), step, 1, CheckpointState.DURABLE, 0, save_ms=save_ms)


@pytest.mark.parametrize(
    ("nodes", "cost_s", "expected_s"),
    [
        (2048, 30, 797),
        (2048, 5, 330),
        (2048, 1, 149),
        (12_500, 30, 311),
        (12_500, 5, 132),
        (12_500, 1, 60),
    ],
)
def test_published_optima_are_met(nodes: int, cost_s: int, expected_s: int) -> None:
    got_s = interval_ms([saved(1, cost_s * 1000)], nodes, rate=RATE) / 1000
    assert got_s == pytest.approx(expected_s, rel=0.01)


@pytest.mark.parametrize("cost_s", [0.05, 1.0, 30.0, 600.0])
@pytest.mark.parametrize("failure_s", [1_000.0, 20_000.0, 10_000_000.0])
def test_no_other_interval_is_better(cost_s: float, failure_s: float) -> None:
    def efficiency(tau_s: float) -> float:
        return tau_s / (failure_s * math.expm1((tau_s + cost_s) / failure_s))

    best = optimum_s(cost_s, failure_s)
    assert all(
        efficiency(best) >= efficiency(best * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0)
    )


def test_the_median_of_measured_saves_counts() -> None:
    usual = [saved(step, 5_000) for step in (1, 2, 3, 4)]
    assert interval_ms([*usual, saved(5, 500_000)], 8) == interval_ms(usual, 8)


def test_nothing_is_advised_before_a_save_was_measured() -> None:
    assert interval_ms([], 8) == 0
    assert interval_ms([saved(1, 0)], 8) == 0
