"""How sure an ETTR is: means with 95 % intervals, and with what chance alone explains taken out. Only arithmetic.

A day has few failures of a large job, so that their number alone moves its ETTR by points. What was drawn is known, though,
and so is what is drawn on average: regressing on it (a control variate) leaves the rest, which is several times smaller.
How long before each fault the job happened to save is chance too: faults come at Poisson times, so that on average they
cost what is at risk on average over time, and what they cost beyond it is taken out before (Result.luck).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

import msgspec

from services.gateway import advice
from simulation.goodput import formula
from simulation.goodput.arms import Arm
from simulation.goodput.faults import DAY_MS, Event, Kind, events
from simulation.goodput.parameters import PER_1000_NODE_DAYS, Channel, World
from simulation.goodput.simulator import SPELL_MS

# Two-sided 95 % of Student's t for 1, 2, ... degrees of freedom; beyond, 1.96 + 2.5 / degrees is good to 0.01.
_T95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_FLEETS: Final = 300  # drawn for the average


class Estimate(msgspec.Struct, frozen=True):
    """A mean and the bounds of its 95 % interval."""

    mean: float
    low: float
    high: float


def plain(values: Sequence[float]) -> Estimate | None:
    """Of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    spread = sum((value - mean) ** 2 for value in values)
    return _around(mean, spread / (len(values) - 1) / len(values), len(values) - 1)


def controlled(values: Sequence[float], controls: Sequence[float], expected: float) -> Estimate | None:  # fmt: skip
    """The same by regression on `controls`, whose true mean is `expected`; None for fewer than four."""
    count = len(values)
    if count < 4:
        return None
    mean, control = fmean(values), fmean(controls)
    width = sum((each - control) ** 2 for each in controls)
    joint = sum((a - mean) * (b - control) for a, b in zip(values, controls, strict=True))
    slope = joint / width
    rest = sum(
        (a - mean - slope * (b - control)) ** 2 for a, b in zip(values, controls, strict=True)
    )
    away = expected - control
    variance = rest / (count - 2) * (1 / count + away * away / width)
    return _around(mean + slope * away, variance, count - 2)


def drawn_loss(world: World, arm: Arm, seed: int) -> list[float]:
    """What the faults drawn for each spell should cost the big job, as a share of the spell: detection, restart, half an interval."""
    spells = [0.0] * round(world.days * DAY_MS / SPELL_MS)
    share = world.train_nodes / world.nodes
    for event in events(world, seed):
        at = event.at_ms // SPELL_MS
        if event.kind is Kind.FAULT and at < len(spells):
            lost_s = _over_s(world, arm, event) + _interval_s(world) / 2
            spells[at] += share * lost_s * 1000 / SPELL_MS
    return spells


def expected_loss(world: World, arm: Arm, seed: int) -> float:
    """The mean of `drawn_loss` over other fleets."""
    one = msgspec.structs.replace(world, days=1.0)
    fleets = (drawn_loss(one, arm, seed + 1 + i) for i in range(_FLEETS))
    return fmean([loss for fleet in fleets for loss in fleet])


def closed_form(world: World, arm: Arm, seed: int) -> float:
    """The exact formula, for the advised interval, with the time that each drawn fault takes to get over in place of R."""
    failure_s = formula.mttf_s(world.train_nodes, world.scale * PER_1000_NODE_DAYS)
    one = msgspec.structs.replace(world, days=1.0)
    faults = [
        event
        for i in range(_FLEETS)
        for event in events(one, seed + 1 + i)
        if event.kind is Kind.FAULT
    ]
    grown = fmean([math.exp(_over_s(world, arm, event) / failure_s) for event in faults])
    over_s = failure_s * math.log(grown)
    return formula.efficiency(_interval_s(world), world.save_s, over_s, failure_s)


def _over_s(world: World, arm: Arm, event: Event) -> float:
    """From the fault to the first new step."""
    known_ms = sum(arm.lost_ms) / 2 if event.channel is Channel.SILENT else event.noticed_ms
    known_ms = {Channel.HANG: arm.hang_ms, Channel.PORT: arm.port_ms}.get(event.channel, known_ms)
    return known_ms / 1000 + world.stop_s + world.restart.median_s


def _interval_s(world: World) -> float:
    failure_s = formula.mttf_s(world.train_nodes, advice.FAILURES_PER_1000_NODE_DAYS)
    return advice.optimum_s(world.save_s, failure_s)


def _around(mean: float, variance: float, degrees: int) -> Estimate:
    t = _T95[degrees - 1] if degrees <= len(_T95) else 1.96 + 2.5 / degrees
    half = t * math.sqrt(variance)
    return Estimate(mean, mean - half, mean + half)
