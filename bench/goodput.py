"""Goodput in a hostile fleet: ETTR and lost GPU-hours of one big job among smaller ones, beside peers' defaults.

Faults are a model (simulation/goodput, with the provenance of each number); placement, retries, fencing and the advised
interval are the real code; the peers differ only in what they notice when, in requeueing, and in which nodes they shut.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

import msgspec

from bench.registry import Measured, at_least, at_most
from services.health.rules import Rules
from simulation.goodput import arms, formula, plot
from simulation.goodput.parameters import PLANNED_RESTART_S, World, field_world, planning_world
from simulation.goodput.simulator import Result, Simulation

# (nodes, nodes of the big job): 2,048 x 8 GPUs with one of 16k; 12,500 x 8 with one of 98k.
_S: Final = (2_048, 2_000)
_L: Final = (12_500, 12_288)
# Days of S, of L, and of each point of the sweep; small sweeps a smaller fleet.
_DAYS: Final = {"small": (1.0, 0.05, 2.0), "full": (20.0, 2.0, 10.0)}
_SCALES: Final = (0.6, 1.0, 1.7)
_LEMONS: Final = (0.0, 0.35, 0.50, 0.70)
_SWEEP_SMALL: Final = (256, 224)
_INCIDENT_DAYS: Final = {"s": 30.0, "l": 10.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    parser.add_argument("--seed", type=int, default=1, help="same seed, same history")
    parser.add_argument("--plot", type=Path, default=Path("out/goodput.png"), metavar="FILE")


def run(options: argparse.Namespace) -> Measured:
    """The bars' world on S and L, all arms on S, the field's world on S, and the sweep."""
    began = time.process_time()
    seed, full = options.seed, options.scale == "full"
    days_s, days_l, days_sweep = _DAYS[options.scale]
    small = planning_world(*_S, days_s)
    ours = _ours(small, seed)
    large = _ours(planning_world(*_L, days_l), seed)
    peers = {arm.name: Simulation(small, arm, seed).run() for arm in _peers(small)}
    hostile_world = field_world(*_S, days_s, incident_days=_INCIDENT_DAYS["s"])
    hostile = {arm.name: Simulation(hostile_world, arm, seed).run() for arm in _all(hostile_world)}
    nodes = _S if full else _SWEEP_SMALL
    sweep = _sweep(planning_world(*nodes, days_sweep), seed)
    plot.draw(
        options.plot,
        sweep=sweep,
        lost={name: _shares(result) for name, result in {ours.arm: ours, **peers}.items()},
        title=f"One job of {_S[1] * 8:,} GPUs on {_S[0] * 8:,}: {days_s:g} days, seed {seed}",
    )
    ettr_s, ettr_l, cascade = round(ours.ettr, 4), round(large.ettr, 4), round(_cascade(ours, large), 4)  # fmt: skip
    return Measured(
        figures={
            "ettr_s": ettr_s,
            "ettr_l": ettr_l,
            "formula_s": _formula(small),
            "formula_l": _formula(planning_world(*_L, days_l)),
            "cascade_share": cascade,
            "lost_gpu_hours": ours.lost_gpu_hours,
            "lost_gpu_hours_l": large.lost_gpu_hours,
            "peers": {name: _summary(result) for name, result in peers.items()},
            "ours": {"s": _summary(ours), "l": _summary(large)},
            "field_s": {name: _summary(result) for name, result in hostile.items()},
            "sweep_ettr": {f"lemons_{lemons:g}": points for lemons, points in sweep.items()},
            "cpu_s": round(time.process_time() - began, 1),
        },
        bars={
            "ettr_s": at_least(ettr_s, 0.94),
            "ettr_l": at_least(ettr_l, 0.86),
            "cascade_share": at_most(cascade, 0.05),
        },
        params={"days_s": days_s, "days_l": days_l, "days_sweep": days_sweep, "save_s": small.save_s,
                "restart_s": PLANNED_RESTART_S, "sweep_nodes": nodes[0]},
    )  # fmt: skip


def _ours(world: World, seed: int) -> Result:
    return Simulation(world, arms.tidemill(world, Rules()), seed).run()


def _peers(world: World) -> tuple[arms.Arm, ...]:
    return arms.kubernetes(world), arms.slurm(world)


def _all(world: World) -> tuple[arms.Arm, ...]:
    return arms.tidemill(world, Rules()), *_peers(world)


def _sweep(world: World, seed: int) -> dict[float, dict[float, float]]:
    return {
        carried: {
            scale: round(_ours(msgspec.structs.replace(world, scale=scale, lemon_carry=carried), seed).ettr, 4)
            for scale in _SCALES
        }
        for carried in _LEMONS
    }  # fmt: skip


def _formula(world: World) -> float:
    """What the exact formula says for the interval that is advised, detection inside R."""
    from services.gateway import advice

    failure_s = formula.mttf_s(world.train_nodes, advice.FAILURES_PER_1000_NODE_DAYS)
    interval_s = advice.optimum_s(world.save_s, failure_s)
    return round(formula.efficiency(interval_s, world.save_s, PLANNED_RESTART_S, failure_s), 4)


def _cascade(*results: Result) -> float:
    return max(result.cascade_share for result in results)


def _shares(result: Result) -> dict[str, float]:
    total = sum(job.gpu_hours for job in result.jobs)
    return {cause: hours / total for cause, hours in result.lost_gpu_hours.items()}


def _summary(result: Result) -> dict[str, object]:
    days = result.jobs[0].gpu_hours / result.jobs[0].nodes / 8 / 24
    return {
        "ettr": round(result.ettr, 4),
        "goodput": round(result.jobs[0].useful_gpu_hours / result.jobs[0].gpu_hours, 4),
        "lost_gpu_hours": result.lost_gpu_hours,
        "restarts": result.restarts,
        "evictions": result.evictions,
        "interruptions_per_1000_node_days": round(1000 * result.interruptions / days / result.jobs[0].nodes, 2),
        "spares": result.spares,
        "nodes_out_mean": result.out_mean,
        "nodes_out_max": result.out_max,
    }  # fmt: skip
