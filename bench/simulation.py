"""Virtual seconds per second of CPU of one simulated cell, in one process: of 60 nodes, and of 1,000.

Each cell lives through a history from its first start on: all real cores, two schedulers, two gateways, health, every
checker, and one job for two nodes each ten minutes, of which some train, save, fail or hang. Faults of all kinds strike
the hostile one; the quiet one has no jobs. Time is that of the CPU, for others share this machine; a history's digest
says that the same was played.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from bench.registry import Measured, at_least
from simulation.faults import draw, schedule
from simulation.history import ACTS, KINDS
from simulation.kernel import few_collections
from simulation.world import Shape, World

# Virtual seconds of the small cell, of the large one.
_LASTS_S: Final = {"small": (120.0, 20.0), "full": (600.0, 120.0)}
_ROUNDS: Final = 3
# One job for two nodes in so long.
_JOBS_S: Final = 600
_FAULTS_EVERY_S: Final = 10
_BAR_60: Final = 600
_BAR_1000: Final = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    parser.add_argument("--seed", type=int, default=1, help="same seed, same histories")


def run(options: argparse.Namespace) -> Measured:
    """Every history three times, the best counts; one before them, for what a process does once."""
    small_s, large_s = _LASTS_S[options.scale]
    seed = options.seed
    _play(_cell(seed, 4, 60.0), 60.0)
    sixty = [_play(_cell(seed, 60, small_s), small_s) for _ in range(_ROUNDS)]
    quiet = [_play(_cell(seed, 60, small_s, jobs=False), small_s) for _ in range(_ROUNDS)]
    hostile = [_play(_cell(seed, 60, small_s, hostile=True), small_s) for _ in range(_ROUNDS)]
    thousand = [_play(_cell(seed, 1_000, large_s), large_s) for _ in range(_ROUNDS)]
    figures: dict[str, object] = {
        "x_real_time_60_nodes": _best(sixty),
        "x_real_time_60_nodes_quiet": _best(quiet),
        "x_real_time_60_nodes_hostile": _best(hostile),
        "x_real_time_1000_nodes": _best(thousand),
        "histories": {"60_nodes": sixty[0][1], "1000_nodes": thousand[0][1]},
    }
    assert len({history for _, history in sixty}) == 1, "one seed, several histories"
    return Measured(
        figures,
        bars={
            "x_real_time_60_nodes": at_least(_best(sixty), _BAR_60),
            "x_real_time_1000_nodes": at_least(_best(thousand), _BAR_1000),
        },
        params={"virtual_s_60_nodes": small_s, "virtual_s_1000_nodes": large_s},
    )


def _best(rounds: list[tuple[float, str]]) -> float:
    return max(speed for speed, _ in rounds)


def _play(world: World, lasts_s: float) -> tuple[float, str]:
    """(virtual seconds a second, digest) of a history that nothing breaks."""
    with few_collections():
        began_s = time.process_time()
        world.begin()
        world.run(lasts_s)
        took_s = time.process_time() - began_s
    if broken := world.broken():
        raise RuntimeError(f"the cell of {world.shape.nodes} nodes broke a promise: {broken[0]}")
    return round(lasts_s / took_s, 1), world.kernel.digest()


def _cell(
    seed: int, nodes: int, lasts_s: float, *, jobs: bool = True, hostile: bool = False
) -> World:
    count = int(nodes / 2 * lasts_s / _JOBS_S) if jobs else 0
    world = World(seed, Shape(nodes=nodes, devices=8, jobs=count, jobs_within_s=int(lasts_s)))
    if hostile:
        chance, faults = world.kernel.chance("faults"), int(lasts_s / _FAULTS_EVERY_S)
        plan = draw(chance, count=faults, within_ms=int(lasts_s * 800), kinds=KINDS)
        schedule(world, plan, ACTS)
    return world
