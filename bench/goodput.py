"""Goodput in a hostile fleet: ETTR and lost GPU-hours of one big job among smaller ones, beside peers' defaults.

Faults are a model (simulation/goodput, with the provenance of each number); placement, retries, fencing, lemons and the
advised interval are the real code; the peers differ only in what they notice when, in requeueing, and in which nodes they
keep out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from bench.registry import Measured, at_least, at_most
from services.gateway import advice
from services.health.rules import Rules
from simulation.goodput import arms, estimate, formula, plot
from simulation.goodput.account import Result
from simulation.goodput.parameters import (
    PLANNED_RESTART_S,
    World,
    field_world,
    planning_world,
    with_repeats,
)
from simulation.goodput.simulator import Simulation

# (nodes, nodes of the big job): 2,048 x 8 GPUs with one of 16k; 12,500 x 8 with one of 98k; and one of half of S.
_FLEETS: Final = {"s": (2_048, 2_000), "l": (12_500, 12_288)}
_SHARED: Final = (2_048, 1_024)
_SPARES: Final = (0.99, 0.5, 0.0)
_INCIDENT_DAYS: Final = {"s": 30.0, "l": 10.0}
_SCALES: Final = (0.6, 1.0, 1.7)
_LEMONS: Final = (0.0, 0.35, 0.50, 0.70)
_SWEEP_SMALL: Final = (256, 224)


class Days(msgspec.Struct, frozen=True):
    """Simulated days of each part, those by fleet in the order of `_FLEETS`."""

    bars: tuple[float, float]
    repeats: tuple[float, float]
    arms: tuple[float, float]
    field: tuple[float, float]
    shared: float
    sweep: float


_DAYS: Final = {
    "small": Days((1.0, 0.05), (1.0, 0.05), (1.0, 0.05), (1.0, 0.05), 1.0, 2.0),
    "full": Days((20.0, 8.0), (6.0, 0.25), (15.0, 0.25), (15.0, 0.25), 5.0, 2.0),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    parser.add_argument("--seed", type=int, default=1, help="same seed, same history")
    parser.add_argument("--plot", type=Path, default=Path("out/goodput.png"), metavar="FILE")


def run(options: argparse.Namespace) -> Measured:
    """Each of S and L in the bars' world, with repeats, and in the field with all arms; then room, and the sweep."""
    began = time.process_time()
    seed, full = options.seed, options.scale == "full"
    days = _DAYS[options.scale]
    fleets = {name: _fleet(name, days, seed) for name in _FLEETS}
    room = {f"spares_{share:g}": _ours(_shared(days.shared, share), seed) for share in _SPARES}
    nodes = _FLEETS["s"] if full else _SWEEP_SMALL
    sweep = _sweep(planning_world(*nodes, days.sweep), seed)
    plot.draw(
        options.plot,
        sweep=sweep,
        lost={name.upper(): {each.arm: _shares(each) for each in fleet.arms} for name, fleet in fleets.items()},
        title=f"One job of {_FLEETS['s'][1] * 8:,} GPUs (S) and one of {_FLEETS['l'][1] * 8:,} (L), seed {seed}",
    )  # fmt: skip
    small, large = fleets["s"], fleets["l"]
    cascade = max(small.bars.cascade_share, large.bars.cascade_share, next(iter(room.values())).cascade_share)  # fmt: skip
    return Measured(
        figures={
            **_headline("s", small),
            **_headline("l", large),
            "cascade_share": round(cascade, 4),
            "lost_gpu_hours": small.bars.lost_gpu_hours,
            "lost_gpu_hours_l": large.bars.lost_gpu_hours,
            **{name: fleet.summary() for name, fleet in fleets.items()},
            "room_for_a_job_of_half": {name: _summary(result) for name, result in room.items()},
            "sweep_ettr": {f"lemons_{lemons:g}": points for lemons, points in sweep.items()},
            "cpu_s": round(time.process_time() - began, 1),
        },
        bars={
            "ettr_s": at_least(round(small.ettr, 4), 0.94),
            "ettr_l": at_least(round(large.ettr, 4), 0.86),
            "cascade_share": at_most(round(cascade, 4), 0.05),
        },
        params={"days": msgspec.to_builtins(days), "save_s": small.world.save_s,
                "restart_s": PLANNED_RESTART_S, "sweep_nodes": nodes[0]},
    )  # fmt: skip


class _Fleet(msgspec.Struct, frozen=True):
    """All that is run on one fleet; `arms` and `field` are every arm on the same faults. `likely` is the bars' ETTR with its interval, if the run is long enough for one."""

    world: World
    bars: Result
    closed_form: float
    likely: estimate.Estimate | None
    repeats: Result
    arms: tuple[Result, ...]
    field: tuple[Result, ...]

    @property
    def ettr(self) -> float:
        """The best estimate that there is."""
        return self.likely.mean if self.likely is not None else self.bars.ettr

    def summary(self) -> dict[str, object]:
        """All of it for the report."""
        return {
            "bars_world": _summary(self.bars),
            "with_repeats": _summary(self.repeats),
            "arms": {result.arm: _summary(result) for result in self.arms},
            "arms_ahead": _ahead(self.arms),
            "field": {result.arm: _summary(result) for result in self.field},
            "field_ahead": _ahead(self.field),
        }


def _fleet(name: str, days: Days, seed: int) -> _Fleet:
    at = list(_FLEETS).index(name)
    nodes = _FLEETS[name]
    world = planning_world(*nodes, days.bars[at])
    arm = arms.tidemill(world, Rules())
    bars = Simulation(world, arm, seed).run()
    beside = planning_world(*nodes, days.arms[at])
    hostile = field_world(*nodes, days.field[at], incident_days=_INCIDENT_DAYS[name])
    return _Fleet(
        world,
        bars,
        estimate.closed_form(world, arm, seed),
        estimate.controlled(
            [spell + luck for spell, luck in zip(bars.spells, bars.luck, strict=True)],
            estimate.drawn_loss(world, arm, seed),
            estimate.expected_loss(world, arm, seed),
        ),
        _ours(with_repeats(planning_world(*nodes, days.repeats[at])), seed),
        _every_arm(beside, seed),
        _every_arm(hostile, seed),
    )


def _shared(days: float, spares: float) -> World:
    """A big job on half of S, smaller ones on the rest, and spares for this share of the time."""
    return msgspec.structs.replace(planning_world(*_SHARED, days), spares=spares)


def _sweep(world: World, seed: int) -> dict[float, dict[float, float]]:
    return {
        carried: {
            scale: round(_ours(msgspec.structs.replace(world, scale=scale, lemon_carry=carried), seed).ettr, 4)
            for scale in _SCALES
        }
        for carried in _LEMONS
    }  # fmt: skip


def _ours(world: World, seed: int) -> Result:
    return Simulation(world, arms.tidemill(world, Rules()), seed).run()


def _every_arm(world: World, seed: int) -> tuple[Result, ...]:
    every = (arms.tidemill(world, Rules()), arms.kubernetes(world), arms.slurm(world))
    return tuple([Simulation(world, arm, seed).run() for arm in every])


# --- figures


def _headline(name: str, fleet: _Fleet) -> dict[str, object]:
    found: dict[str, object] = {f"ettr_{name}": round(fleet.ettr, 4)}
    if fleet.likely is not None:
        found[f"ettr_{name}_95"] = _bounds(fleet.likely)
    found[f"formula_{name}"] = _formula(fleet.world)
    found[f"formula_{name}_by_cause"] = round(fleet.closed_form, 4)
    return found


def _formula(world: World) -> float:
    """What the exact formula says for the interval that is advised, with detection inside R."""
    failure_s = formula.mttf_s(world.train_nodes, advice.FAILURES_PER_1000_NODE_DAYS)
    interval_s = advice.optimum_s(world.save_s, failure_s)
    return round(formula.efficiency(interval_s, world.save_s, PLANNED_RESTART_S, failure_s), 4)


def _shares(result: Result) -> Mapping[str, float]:
    total = sum(job.gpu_hours for job in result.jobs)
    return {cause: hours / total for cause, hours in result.lost_gpu_hours.items()}


def _bounds(found: estimate.Estimate) -> list[float]:
    return [round(found.low, 4), round(found.high, 4)]


def _ahead(arms: tuple[Result, ...]) -> dict[str, object]:
    """By how much the first arm's ETTR is above each other's, and the 95 % interval of that: same faults, so in pairs."""
    ours, *others = arms
    found: dict[str, object] = {}
    for each in others:
        pairs = zip(ours.spells, each.spells, strict=True)
        apart = estimate.plain([a - b for a, b in pairs])
        if apart is not None:
            found[each.arm] = {"ettr": round(apart.mean, 4), "ettr_95": _bounds(apart)}
    return found


def _summary(result: Result) -> dict[str, object]:
    big = result.jobs[0]
    days = big.gpu_hours / big.nodes / 8 / 24
    spread = estimate.plain(result.spells)
    return {
        "days": round(days, 2),
        "ettr": round(result.ettr, 4),
        **({"ettr_95": _bounds(spread)} if spread is not None else {}),
        "goodput": round(big.useful_gpu_hours / big.gpu_hours, 4),
        "cascade_share": round(result.cascade_share, 4),
        "lost_gpu_hours": result.lost_gpu_hours,
        "restarts": result.restarts,
        "evictions": result.evictions,
        "interruptions_per_1000_node_days": round(1000 * result.interruptions / days / big.nodes, 2),
        "spares": result.spares,
        "nodes_out_mean": result.out_mean,
        "nodes_out_max": result.out_max,
        "lemons_replaced": result.replaced,
    }  # fmt: skip
