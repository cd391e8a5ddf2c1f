"""The model meets the published figures that it was drawn from, and the simulator the closed form."""

import re
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from services.gateway import advice
from services.health.rules import Rules
from simulation.goodput import arms, formula, parameters
from simulation.goodput.faults import Kind, events, lemons
from simulation.goodput.parameters import (
    CAUSES,
    PER_1000_NODE_DAYS,
    Lognormal,
    World,
    field_world,
    planning_world,
)
from simulation.goodput.simulator import Result, Simulation


def test_a_one_16k_job_at_the_optimum_is_945_efficient() -> None:
    failure_s = formula.mttf_s(2048, 3.8)
    interval_s = advice.optimum_s(5, failure_s)
    assert formula.efficiency(interval_s, 5, 300, failure_s) == pytest.approx(0.945, abs=0.01)
    assert interval_s == pytest.approx(330, rel=0.02)


def test_b_at_6_5_per_1000_node_days_16384_gpus_fail_every_1_8_hours() -> None:
    assert formula.mttf_s(2048, 6.5) / 3600 == pytest.approx(1.80, abs=0.01)
    world = replace(planning_world(2048, 2048, 200), scale=6.5 / PER_1000_NODE_DAYS)
    assert 200 * 24 / len(events(world, 7)) == pytest.approx(1.80, rel=0.07)


def test_c_large_at_6_5_with_600_s_restarts_is_444_efficient() -> None:
    failure_s = formula.mttf_s(12_500, 6.5)
    interval_s = advice.optimum_s(30, failure_s)
    assert formula.efficiency(interval_s, 30, 600, failure_s) == pytest.approx(0.444, abs=0.002)


def _failures(hits: int) -> int:
    """Faults that met a job of 960 GPUs in a fleet of 1,024; lemons come back from each repair as they went, soon."""
    world = replace(
        planning_world(128, 120, 300), lemon_carry=0.7, small_nodes=0, save_s=60.0, quarantine_hits=hits,
        repair=parameters.Repair(reset_share=1.0),
    )  # fmt: skip
    histories = (Simulation(world, arms.tidemill(world, Rules()), seed) for seed in (1, 2, 3))
    return sum(history.run().by_hardware for history in histories)


def test_d_quarantine_of_lemons_halves_the_hardware_failures_of_512_gpu_jobs() -> None:
    """With 70 % of hardware faults on lemons. At 50 % not even a perfect quarantine could; software fails as before."""
    assert _failures(2) < 0.5 * _failures(0)


def test_the_rows_are_the_419_interruptions_of_the_table() -> None:
    assert sum(row.count for row in CAUSES) == 419
    assert pytest.approx(3.789, abs=0.001) == PER_1000_NODE_DAYS


def test_lemons_carry_their_share_and_no_rate_is_added() -> None:
    world = planning_world(2048, 2000, 300)
    drawn, bad = events(world, 3), lemons(world, 3)
    hardware = [event for event in drawn if event.cause in {"gpu", "hbm", "gpu_sram", "nic"}]
    share = sum(event.node in bad for event in hardware) / len(hardware)
    assert share == pytest.approx(0.50 + 0.50 * 0.015, abs=0.04)
    assert 1000 * len(drawn) / 2048 / 300 == pytest.approx(PER_1000_NODE_DAYS, rel=0.05)


def test_the_field_has_every_process_of_the_model() -> None:
    drawn = events(field_world(2048, 2000, 60, incident_days=20), 1)
    assert set(Counter(event.kind for event in drawn)) == set(Kind)
    assert "link_flap" in {event.cause for event in drawn}
    assert not {"nic", "switch_or_cable"} & {event.cause for event in drawn}


def _plain(**changes: object) -> World:
    """What the formula assumes: errors that show at once, one constant restart, no node that stays away for long."""
    world = replace(
        planning_world(64, 60, 20), scale=20.0, lemon_carry=0.0, implicit=0.0, visible=Lognormal(0.001, 0.0),
        stop_s=0.0, small_nodes=0, start_s=1.0, repair=parameters.Repair(reset_share=1.0, unfixed=0.0),
    )  # fmt: skip
    return replace(world, **changes)


def test_the_simulator_agrees_with_the_formula_where_its_assumptions_hold() -> None:
    world = _plain(restart=Lognormal(120.0, 0.0))
    quick = replace(arms.tidemill(world, Rules()), lost_ms=(1, 2), port_ms=1, hang_ms=1, brake=-1)
    results = [Simulation(world, quick, seed).run() for seed in range(3)]
    failure_s = formula.mttf_s(60, 20 * PER_1000_NODE_DAYS)
    # What it is advised: for nodes at the usual rate.
    interval_s = advice.optimum_s(
        world.save_s, formula.mttf_s(60, advice.FAILURES_PER_1000_NODE_DAYS)
    )
    expected = formula.efficiency(interval_s - world.save_s, world.save_s, 120, failure_s)
    assert sum(each.ettr for each in results) / 3 == pytest.approx(expected, abs=0.01)


def _history(seed: int) -> Result:
    world = replace(field_world(64, 48, 4, incident_days=2), scale=10.0)
    return Simulation(world, arms.tidemill(world, Rules()), seed).run()


def test_one_seed_is_one_history_and_all_time_is_accounted_for() -> None:
    once = _history(5)
    assert once == _history(5)
    assert once != _history(6)
    for job in once.jobs:
        assert job.useful_gpu_hours + sum(job.lost_gpu_hours.values()) == pytest.approx(
            job.gpu_hours
        )


def test_what_the_big_job_takes_from_smaller_ones_is_counted_as_cascade() -> None:
    racks = parameters.Network(rack_nodes=12, rack_loss=0.2, flap=0.0)
    world = replace(planning_world(64, 48, 6), scale=5.0, small_nodes=4, network=racks)
    result = Simulation(world, arms.tidemill(world, Rules()), 2).run()
    assert result.evictions["requeued"] > 0
    assert 0 < result.cascade_share < 1


def test_peers_lose_more_to_detection_than_we_do_with_the_same_faults() -> None:
    world = replace(planning_world(128, 100, 10), scale=10.0)
    ours = Simulation(world, arms.tidemill(world, Rules()), 1).run()
    for arm in (arms.kubernetes(world), arms.slurm(world)):
        theirs = Simulation(world, arm, 1).run()
        assert theirs.lost_gpu_hours["detection"] > ours.lost_gpu_hours["detection"]
        assert theirs.ettr < ours.ettr


def test_every_parameter_says_where_it_comes_from() -> None:
    source = Path(parameters.__file__).read_text(encoding="utf-8")
    numbers = re.findall(
        r"^    \w+: (?:float|int|Lognormal|tuple\[float, float\]) = .*$", source, re.MULTILINE
    )
    assert len(numbers) > 40
    assert [line for line in numbers if not re.search(r"#.*(\[[PSRDA]|\.\.\.)", line)] == []
