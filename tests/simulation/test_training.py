"""Simulated trainers reach the cell by their host's network, and by nothing else."""

from __future__ import annotations

import pytest

from simulation.nodes import Host
from simulation.scenario import Work
from simulation.world import Shape, World


def _training() -> tuple[World, Host, str]:
    """A world in which one job trains on the only host; it has saved once."""
    world = World(1, Shape(nodes=1, jobs=0))
    work = Work(members=1, steps=3_000, step_ms=100, save_every=20)
    wanted = work.wanted(0)
    world.submit(wanted, at_ms=1_000)
    world.begin()
    assert world.run_until(lambda: _durable(world, wanted.job) >= 20, within_s=120)
    return world, world.hosts[0], wanted.job


def _durable(world: World, job: str) -> int:
    found = [each for each in world.referee.cluster.jobs.values() if each.id == job]
    return found[0].durable_step if found else -1


def _steps(world: World) -> int:
    return max(gang.step for gang in world.physics.gangs.values())


def test_what_a_trainer_behind_a_cut_saves_is_not_known_before_the_way_is_open() -> None:
    world, host, job = _training()
    host.cut_up = True
    world.run(0.1)  # What was on its way arrives.
    before, steps = _durable(world, job), _steps(world)
    world.run(7.0)  # Less than it takes to be lost.
    assert (_durable(world, job), _steps(world) >= steps + 40) == (before, True)
    host.join_network()
    assert world.run_until(lambda: _durable(world, job) >= before + 40, within_s=5)


def test_an_answer_that_cannot_come_back_is_asked_for_again_and_counts_once() -> None:
    world, host, _ = _training()
    told: list[int] = []
    witness = world.physics.reporter.acknowledged

    def acknowledged(job: str, attempt: int, step: int) -> None:
        told.append(step)
        witness(job, attempt, step)

    world.physics.reporter.acknowledged = acknowledged
    host.cut_down = True
    world.run(7.0)
    assert told == []
    host.join_network()
    world.run(12.0)
    assert told == sorted(set(told))
    assert len(told) >= 2
    assert world.broken() == []


@pytest.mark.parametrize("cut", ["up", "down"])
def test_a_cut_is_healed_with_all_that_was_owed(cut: str) -> None:
    world, host, job = _training()
    host.cut_up, host.cut_down = cut == "up", cut == "down"
    world.run(60.0)
    verdict = world.finish()
    assert verdict.broken == ()
    assert _durable(world, job) == 3_000


def test_a_host_that_is_gone_for_good_takes_along_what_it_had_not_sent() -> None:
    world, host, job = _training()
    host.cut_up = True
    world.run(0.1)
    before = _durable(world, job)
    world.run(7.0)
    host.die()
    world.run(30.0)
    assert _durable(world, job) == before
