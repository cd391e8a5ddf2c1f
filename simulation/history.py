"""One history: a scenario, a seed, and what came of it. The same arguments give the same history."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

import msgspec

from simulation.cell_faults import CELL_FAULTS
from simulation.faults import Act, schedule
from simulation.host_faults import HOST_FAULTS
from simulation.kernel import Kernel, few_collections
from simulation.nic_faults import NIC_FAULTS
from simulation.referee import Event
from simulation.scenario import Scenario, Setup, setup
from simulation.training import Gang
from simulation.world import Verdict, World

ACTS: Final[Mapping[str, Act]] = {**CELL_FAULTS, **HOST_FAULTS, **NIC_FAULTS}
# What is drawn where a scenario names no kinds. One more would make another history of every seed.
KINDS: Final = tuple(sorted({**CELL_FAULTS, **HOST_FAULTS}))
# The default scenario: any cell, any faults.
ANYTHING: Final = "anything"


class History(msgspec.Struct, frozen=True):
    """What happened, for checks and reports. `names`: which job is the scenario's job-0 and so on."""

    setup: Setup
    verdict: Verdict
    events: tuple[Event, ...]
    names: Mapping[str, str]


def setup_of(scenario: Scenario, seed: int) -> Setup:
    """What a seed makes of the scenario."""
    return setup(scenario, Kernel(seed).chance("setup"), KINDS)


def play(scenario: Scenario, seed: int, given: Setup | None = None) -> History:
    """Live through it; `given` replaces what the seed would draw."""
    made = given or setup_of(scenario, seed)
    world = World(seed, made.shape)
    world.operators.accepts_gaps = scenario.accepts_gaps
    names = {}
    for number, work in enumerate(scenario.work):
        wanted = work.wanted(number)
        names[f"job-{number}"] = wanted.job
        world.submit(wanted, at_ms=int(work.at_s * 1000))
    schedule(world, made.plan, ACTS)
    with few_collections():
        world.begin()
        world.run(scenario.run_s)
        verdict = world.finish()
    world.note_ends()
    events = tuple(world.referee.events)
    failures = [check.failure(events, names) for check in scenario.check]
    if scenario.lost_steps_max is not None:
        failures += _lost_steps(world.physics.gangs, scenario.lost_steps_max)
    broken = (*verdict.broken, *[f"check: {failure}" for failure in failures if failure])
    return History(made, msgspec.structs.replace(verdict, broken=broken), events, names)


def _lost_steps(gangs: Mapping[tuple[str, int], Gang], most: int) -> list[str]:
    """Restarts that threw away more steps than a restart may."""
    failures = []
    ordered = sorted(gangs)
    for before, after in itertools.pairwise(ordered):
        lost = gangs[before].step - gangs[after].resume.step
        if before[0] == after[0] and lost > most:
            failures.append(
                f"attempt {after[1]} of job {after[0]} makes {lost} steps again, at most {most} may be"
            )
    return failures
