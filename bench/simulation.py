"""Virtual seconds per second of CPU of one simulated cell, in one process: of 60 nodes, and of 1,000.

Each cell lives through a history from its first start on: all real cores, two schedulers, two gateways, health, every
checker, and one job for two nodes each ten minutes, of which some train, save, fail or hang. Faults of all kinds strike
the hostile one. Time is that of the CPU, for others share this machine; digests say that the same was played.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from bench.registry import Measured, at_least
from simulation.faults import draw, schedule
from simulation.history import ACTS, KINDS
from simulation.world import Shape, World

# Virtual seconds of the small cell, of the large one.
_LASTS_S: Final = {"small": (120.0, 20.0), "full": (600.0, 120.0)}
# One job for two nodes in so long.
_JOBS_S: Final = 600
_FAULTS_EVERY_S: Final = 10
_BAR_60: Final = 600
_BAR_1000: Final = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    parser.add_argument("--seed", type=int, default=1, help="same seed, same histories")


def run(options: argparse.Namespace) -> Measured:
    """One history each."""
    small_s, large_s = _LASTS_S[options.scale]
    histories: dict[str, str] = {}
    figures: dict[str, object] = {"histories": histories}

    def speed(name: str, nodes: int, lasts_s: float, *, hostile: bool = False) -> float:
        world = _cell(options.seed, nodes, lasts_s, hostile=hostile)
        began_s = time.process_time()
        world.begin()
        world.run(lasts_s)
        took_s = time.process_time() - began_s
        if broken := world.broken():
            raise RuntimeError(f"the {name} cell broke a promise: {broken[0]}")
        histories[name] = world.kernel.digest()
        figures[f"x_real_time_{name}"] = round(lasts_s / took_s, 1)
        figures[f"events_per_s_{name}"] = round(world.kernel.events / took_s)
        return round(lasts_s / took_s, 1)

    sixty = speed("60_nodes", 60, small_s)
    thousand = speed("1000_nodes", 1_000, large_s)
    speed("60_nodes_hostile", 60, small_s, hostile=True)
    return Measured(
        figures,
        bars={
            "x_real_time_60_nodes": at_least(sixty, _BAR_60),
            "x_real_time_1000_nodes": at_least(thousand, _BAR_1000),
        },
        params={"virtual_s_60_nodes": small_s, "virtual_s_1000_nodes": large_s},
    )


def _cell(seed: int, nodes: int, lasts_s: float, *, hostile: bool) -> World:
    jobs = int(nodes / 2 * lasts_s / _JOBS_S)
    shape = Shape(nodes=nodes, devices=8, jobs=jobs, jobs_within_s=int(lasts_s))
    world = World(seed, shape)
    if hostile:
        count, within_ms = int(lasts_s / _FAULTS_EVERY_S), int(lasts_s * 800)
        chance = world.kernel.chance("faults")
        schedule(world, draw(chance, count=count, within_ms=within_ms, kinds=KINDS), ACTS)
    return world
