"""What draining stragglers is worth: less slowness for more moves, and nothing changes where they are only told of."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from services.health.rules import Rules
from simulation.goodput.account import Result
from simulation.goodput.arms import tidemill
from simulation.goodput.parameters import Noise, field_world
from simulation.goodput.simulator import Simulation

SLOW = Noise(straggler_share=0.02, straggler_speed=(0.7, 0.85))
FEW = Rules(straggler_drain_ms=3_600_000)


@cache
def history(rules: Rules, noise: Noise = SLOW) -> Result:
    world = replace(field_world(64, 48, 6, incident_days=20), noise=noise)
    return Simulation(world, tidemill(world, rules), 1).run()


def lost(result: Result, cause: str) -> float:
    return result.jobs[0].lost_gpu_hours.get(cause, 0.0)


def test_a_job_that_leaves_slow_nodes_loses_less_than_by_staying() -> None:
    stays, moves = history(Rules()), history(FEW)
    assert lost(stays, "straggler") > 0.05 * stays.jobs[0].gpu_hours
    assert lost(moves, "straggler") < lost(stays, "straggler") / 3
    assert moves.jobs[0].useful_gpu_hours > stays.jobs[0].useful_gpu_hours
    assert moves.jobs[0].attempts > stays.jobs[0].attempts


def test_who_is_slow_by_less_than_the_margin_stays() -> None:
    barely = replace(SLOW, straggler_speed=(0.92, 0.95))
    assert history(FEW, barely) == history(Rules(), barely)


def test_nothing_moves_where_the_rule_is_off() -> None:
    off = Rules(straggler_drain_ms=3_600_000, straggler_percent=0)
    assert history(off) == history(Rules())
