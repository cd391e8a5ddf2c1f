"""The model meets the published figures that it was drawn from, and the simulator the closed form."""

import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from services.gateway import advice
from services.health.rules import Rules
from simulation.goodput import arms, estimate, formula, parameters, plot
from simulation.goodput.account import Result
from simulation.goodput.faults import Kind, events, lemons
from simulation.goodput.parameters import (
    CAUSES,
    PER_1000_NODE_DAYS,
    Lognormal,
    World,
    field_world,
    planning_world,
    with_repeats,
)
from simulation.goodput.simulator import Simulation
from statemachines.nic import NicState


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


_DAY_MS = 86_400_000


def _failures(carried: float, rules: Rules) -> tuple[int, int]:
    """(all, by hardware) failures of a job of 960 GPUs among 1,024 with repeats on retry; repairs take minutes and help no lemon."""
    world = replace(
        with_repeats(planning_world(128, 120, 300)), lemon_carry=carried, small_nodes=0, save_s=60.0,
        repair=parameters.Repair(reset_share=1.0),
    )  # fmt: skip
    found = [Simulation(world, arms.tidemill(world, rules), seed).run() for seed in (1, 2)]
    return sum(each.interruptions for each in found), sum(each.by_hardware for each in found)


@pytest.mark.parametrize(
    ("carried", "of_all", "of_hardware"), [(0.70, 0.50, 0.40), (0.50, 0.60, 0.50)]
)
def test_d_quarantine_of_lemons_cuts_failures_of_large_jobs_by_more_than_half(
    carried: float, of_all: float, of_hardware: float
) -> None:
    """All failures where lemons carry 70 % of the hardware's; at 50 % only those of hardware: 23 % of faults are not its. By our defaults."""
    every, hardware = _failures(carried, Rules(lemon_strikes=0))
    left, hardware_left = _failures(carried, Rules())
    assert left < of_all * every
    assert hardware_left < of_hardware * hardware


def test_the_rows_are_the_419_interruptions_of_the_table() -> None:
    assert sum(row.count for row in CAUSES) == 419
    assert pytest.approx(3.789, abs=0.001) == PER_1000_NODE_DAYS


def test_when_a_job_happened_to_save_is_chance_and_taking_it_out_moves_no_mean() -> None:
    world = replace(planning_world(256, 250, 60), scale=6.0)
    arm = arms.tidemill(world, Rules())
    found = Simulation(world, arm, 1).run()
    drawn, expected = estimate.drawn_loss(world, arm, 1), estimate.expected_loss(world, arm, 1)
    without = [spell + luck for spell, luck in zip(found.spells, found.luck, strict=True)]
    before = estimate.controlled(found.spells, drawn, expected)
    after = estimate.controlled(without, drawn, expected)
    assert before is not None
    assert after is not None
    assert after.mean == pytest.approx(before.mean, abs=0.001)
    assert after.high - after.low < 0.9 * (before.high - before.low)


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
    quick = replace(
        arms.tidemill(world, Rules()), lost_ms=(1, 2), port_ms=1, hang_ms=1, kill_ms=1, brake=-1
    )
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


def test_without_spares_the_big_job_takes_nodes_from_smaller_ones_and_that_is_counted_as_cascade() -> (
    None
):
    shares = []
    for spares in (0.0, 0.99):
        world = replace(planning_world(128, 64, 20), scale=5.0, spares=spares)
        result = Simulation(world, arms.tidemill(world, Rules()), 2).run()
        assert ("requeued" in result.evictions) is (result.cascade_share > 0)
        shares.append(result.cascade_share)
    assert shares[0] > 0.05
    assert shares[1] < 0.2 * shares[0]


def _stalls(*, sees_ports: bool) -> int:
    """Attempts that stood still, of one job that has few nodes to spare, with no lemon detector to help."""
    stalls = 0
    for seed in (1, 2):
        world = replace(planning_world(64, 60, 20), scale=20.0, small_nodes=0, lemon_carry=0.0)
        arm = replace(arms.tidemill(world, Rules(lemon_strikes=0)), sees_ports=sees_ports)
        history = Simulation(with_repeats(world), arm, seed)
        ends = history.run().evictions
        stalls += ends["hung"] + ends.get("nic_fault", 0)
        nodes = history.leader.cluster.nodes.values()
        assert [node for node in nodes if node.nics[0].state is NicState.FAULTY] == []  # Repaired.
    return stalls


def test_a_node_with_a_dead_port_fails_fewer_gangs_when_it_is_known_and_is_repaired() -> None:
    assert _stalls(sees_ports=True) < 0.9 * _stalls(sees_ports=False)


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


def test_an_estimate_is_as_sure_as_what_chance_leaves_unexplained() -> None:
    chance = Random(1)
    drawn = [chance.gauss(0.10, 0.03) for _ in range(40)]
    ettr = [1 - loss - 0.01 + chance.gauss(0, 0.003) for loss in drawn]
    bare, sure = estimate.plain(ettr), estimate.controlled(ettr, drawn, 0.10)
    assert bare is not None and sure is not None
    assert sure.low < 0.89 < sure.high
    assert sure.high - sure.low < 0.25 * (bare.high - bare.low)
    assert estimate.plain([0.9]) is estimate.controlled([0.9] * 3, [0.1] * 3, 0.1) is None


def test_the_estimate_agrees_with_the_closed_form_of_each_causes_own_time() -> None:
    world = replace(_plain(restart=Lognormal(100.0, 0.0), stop_s=5.0, implicit=0.135), days=30.0)
    arm = arms.tidemill(world, Rules())
    spells = Simulation(world, arm, 4).run().spells
    found = estimate.controlled(
        spells, estimate.drawn_loss(world, arm, 4), estimate.expected_loss(world, arm, 4)
    )
    assert found is not None
    assert found.mean == pytest.approx(estimate.closed_form(world, arm, 4), abs=0.01)
    assert found.high - found.low < 0.02


def test_the_picture_shows_every_arm_of_every_fleet(tmp_path: Path) -> None:
    lost = {"S": {"tidemill": {"restart": 0.01}, "slurm_defaults": {"restart": 0.05, "held": 0.1}}}
    plot.draw(tmp_path / "new" / "plot.png", sweep={0.0: {1.0: 0.9}}, lost=lost, title="test")
    assert (tmp_path / "new" / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(AssertionError, match="no colour"):
        plot.draw(
            tmp_path / "x.png",
            sweep={0.0: {1.0: 0.9}},
            lost={"S": {"a": {"new": 1.0}}},
            title="test",
        )
