"""Rules of the plan, each by its name."""

from __future__ import annotations

import random

import msgspec
import pytest

from planning.decisions import Place, Wait
from planning.planner import Planner
from statemachines import facts
from statemachines.policy import DEFAULT_POLICY
from statemachines.queue import NO_LIMIT
from statemachines.values import (
    JobId,
    JobNext,
    JobSpec,
    NodeId,
    QueueId,
    Reach,
    Reason,
    Resources,
    ResumePoint,
    Role,
    Tier,
)
from tests.planning.build import Cell


def test_tightest_node_that_fits_is_taken() -> None:
    cell = Cell()
    for name, free in (("a", 8), ("b", 4), ("c", 2)):
        cell.node(name, devices=free)
    cell.job("j", devices=3)
    cell.plan()
    assert cell.where("j") == [("b", (0, 1, 2))]


def test_work_without_devices_goes_to_nodes_without_devices_first() -> None:
    cell = Cell()
    cell.node("gpu", devices=8, cpu=4)
    cell.node("cpu", devices=0, cpu=64)
    cell.job("j", devices=0, cpu=2)
    cell.plan()
    assert cell.where("j") == [("cpu", ())]


def test_gang_is_placed_whole_or_not_at_all() -> None:
    cell = Cell()
    for name in ("a", "b", "c"):
        cell.node(name)
    cell.job("small", devices=8)
    cell.job("gang", members=3, devices=8)
    cell.plan()
    assert cell.where("small") == [("a", tuple(range(8)))]
    assert cell.where("gang") == []
    assert cell.reason("gang") == "waiting_for_capacity"
    reason = cell.cluster.jobs[JobId("gang")].reason
    assert reason is not None
    assert reason.missing == 1
    cell.end("small")
    cell.plan()
    assert sorted(node for node, _ in cell.where("gang")) == ["a", "b", "c"]


def test_failed_gang_search_leaves_the_room_as_it_was() -> None:
    cell = Cell()
    cell.node("a")
    cell.node("b", devices=4)
    cell.job("gang", members=2, devices=8, priority=5)
    cell.job("one", devices=8)
    cell.job("two", devices=4)
    cell.plan()
    assert cell.where("one") == [("a", tuple(range(8)))]
    assert cell.where("two") == [("b", (0, 1, 2, 3))]


def test_priority_goes_first_and_age_decides_among_equals() -> None:
    cell = Cell()
    cell.node("a", devices=1)
    cell.job("old")
    cell.job("young")
    cell.job("important", priority=1)
    cell.plan()
    assert [name for name in ("old", "young", "important") if cell.where(name)] == ["important"]
    cell.end("important")
    cell.plan()
    assert cell.where("old")
    assert not cell.where("young")


def test_waiting_outweighs_priority_after_the_time_that_a_point_is_worth() -> None:
    cell = Cell()
    cell.node("a", devices=1)
    cell.job("busy")
    cell.plan()
    cell.job("patient")
    cell.now_ms += 2 * cell.cluster.policy.aging_ms_per_point + 1
    cell.job("important", priority=2)
    cell.plan()
    cell.end("busy")
    cell.plan()
    assert cell.where("patient")
    assert not cell.where("important")


def test_queue_device_limit_holds_within_one_plan_and_up_the_line() -> None:
    cell = Cell()
    cell.node("a")
    cell.record(facts.QueueApplied(QueueId("team"), "", 3, NO_LIMIT, NO_LIMIT))
    cell.record(facts.QueueApplied(QueueId("sub"), "team", NO_LIMIT, NO_LIMIT, NO_LIMIT))
    cell.job("x", devices=2, queue="sub")
    cell.job("y", devices=2, queue="sub")
    cell.job("z", devices=2)
    cell.plan()
    assert cell.where("x")
    assert cell.where("z")
    assert not cell.where("y")
    assert cell.reason("y") == "queue_device_limit"
    cell.record(facts.QueueApplied(QueueId("team"), "", 4, NO_LIMIT, NO_LIMIT))
    cell.plan()
    assert cell.where("y")


@pytest.mark.parametrize(
    ("shut", "code"),
    [
        (facts.NodeCordoned(NodeId("a"), "repair"), "capable_nodes_not_open"),
        (facts.NodeSuspected(NodeId("a"), 6000), "capable_nodes_not_open"),
        (facts.NodeLost(NodeId("a"), 1, ""), "capable_nodes_not_open"),
    ],
)
def test_nothing_is_placed_on_a_node_that_is_not_open(shut: facts.Fact, code: str) -> None:
    cell = Cell()
    cell.node("a")
    cell.record(shut)
    cell.job("j")
    cell.plan()
    assert not cell.where("j")
    assert cell.reason("j") == code


def test_faulty_device_is_never_granted_and_degraded_comes_last() -> None:
    cell = Cell()
    cell.node("a", devices=3)
    cell.record(facts.DeviceFaulted(NodeId("a"), 0, Reason("xid_79")))
    cell.record(facts.DeviceDegraded(NodeId("a"), 1, Reason("ecc")))
    cell.job("first")
    cell.job("second")
    cell.job("third")
    cell.plan()
    assert cell.where("first") == [("a", (2,))]
    assert cell.where("second") == [("a", (1,))]
    assert not cell.where("third")


def test_model_is_respected() -> None:
    cell = Cell()
    cell.node("a", model="A100")
    cell.node("h", model="H100")
    cell.job("any", devices=1)
    cell.job("h", devices=1, models=("H100",))
    cell.job("tpu", devices=1, models=("TPU",))
    cell.plan()
    assert cell.where("h")[0][0] == "h"
    assert cell.reason("tpu") == "no_capable_nodes"


def test_reason_is_told_once_while_its_code_stays() -> None:
    cell = Cell()
    cell.node("a", devices=1)
    cell.job("busy")
    cell.job("j1")
    cell.job("j2")
    first = cell.plan()
    assert sum(isinstance(each, Wait) for each in first) == 2
    cell.job("j3")
    again = cell.plan()
    assert [each.job for each in again if isinstance(each, Wait)] == ["j3"]
    assert cell.plan() == []


def test_limit_bounds_a_plan_and_the_rest_is_due_at_once() -> None:
    cell = Cell()
    cell.node("a", devices=1)
    for i in range(5):
        cell.job(f"j{i}")
    assert len(cell.plan(limit=2)) == 2
    assert cell.planner.next_due_ms(cell.now_ms) == cell.now_ms
    assert len(cell.plan(limit=10)) == 3
    assert cell.planner.next_due_ms(cell.now_ms) != cell.now_ms


def test_starving_head_is_not_passed_once_it_has_waited_too_long() -> None:
    cell = Cell()
    cell.node("a")
    cell.node("b")
    cell.job("one", devices=4)
    cell.job("two", devices=4)
    cell.plan()
    assert len({cell.where("one")[0][0], cell.where("two")[0][0]}) == 1
    cell.job("big", members=2, devices=8)
    cell.job("passes", devices=2)
    cell.plan()
    assert cell.where("passes")
    assert not cell.where("big")
    due = cell.planner.next_due_ms(cell.now_ms)
    assert due == cell.now_ms + cell.cluster.policy.starvation_after_ms
    cell.now_ms = due
    cell.job("late", devices=2)
    cell.job("cpu-only", devices=0)
    cell.plan()
    assert cell.reason("late") == "behind_starving_job"
    assert cell.where("cpu-only")
    for name in ("one", "two", "passes"):
        cell.end(name)
    cell.plan()
    assert len(cell.where("big")) == 2


def test_a_head_whose_nodes_have_left_starves_nobody_and_says_so() -> None:
    cell = Cell()
    for name in ("h", "k"):
        cell.node(name, devices=1, model="H100")
    cell.job("holds", models=("H100",))
    cell.job("waits", models=("H100",), members=2)
    cell.plan()
    assert cell.reason("waits") == "waiting_for_capacity"
    cell.record(facts.NodeCordoned(NodeId("h"), ""))
    cell.node("late", devices=1, model="H200")
    cell.plan()
    assert cell.reason("waits") == "capable_nodes_not_open"
    cell.now_ms += cell.cluster.policy.starvation_after_ms + 1
    cell.job("other")
    cell.plan()
    assert cell.where("other")


def test_a_starving_head_holds_back_only_what_could_take_its_devices() -> None:
    cell = Cell()
    cell.node("h", devices=1, model="H100")
    cell.node("a", devices=2, model="A100")
    cell.job("busy", models=("H100",))
    cell.plan()
    for name, models in (("starves", ("H100",)), ("also", ("H100", "L4"))):
        cell.job(name, models=models)
    cell.plan()
    cell.now_ms += cell.cluster.policy.starvation_after_ms + 1
    cell.job("any")
    for name, models in (("mine", ("A100",)), ("both", ("A100", "H100"))):
        cell.job(name, models=models)
    cell.plan()
    assert cell.where("mine") == [("a", (0,))]
    assert cell.reason("any") == cell.reason("both") == "behind_starving_job"


def test_what_starves_for_cpu_holds_back_everything() -> None:
    cell = Cell()
    cell.node("a", devices=1, cpu=4)
    cell.job("busy", devices=0, cpu=2)
    cell.plan()
    cell.job("starves", devices=0, cpu=4)
    cell.plan()
    cell.now_ms += cell.cluster.policy.starvation_after_ms + 1
    cell.job("late", devices=1, cpu=1)
    cell.plan()
    assert cell.reason("late") == "behind_starving_job"


def test_a_role_without_devices_of_a_starving_head_competes_for_none() -> None:
    cell = Cell()
    cell.node("h", devices=1, model="H100")
    cell.node("a", devices=1, model="A100")
    cell.job("busy", models=("H100",))
    cell.plan()
    needs = (Resources(1_000, 0, 0), Resources(1_000, 0, 1, ("H100",)))
    roles = tuple(Role(f"r{i}", 1, need) for i, need in enumerate(needs))
    spec = JobSpec("starves", QueueId("default"), 0, roles)
    number = cell.cluster.next_number
    cell.record(facts.JobAdmitted(JobId("starves"), number, 0, spec, "r/starves", b""))
    cell.plan()
    cell.now_ms += cell.cluster.policy.starvation_after_ms + 1
    cell.job("mine", models=("A100",))
    cell.plan()
    assert cell.where("mine") == [("a", (0,))]


def test_a_job_that_can_never_fit_starves_nobody() -> None:
    cell = Cell()
    cell.node("a")
    cell.job("huge", members=4, devices=8)
    cell.plan()
    cell.now_ms += cell.cluster.policy.starvation_after_ms + 1
    cell.job("small")
    cell.plan()
    assert cell.where("small")
    assert cell.reason("huge") == "no_capable_nodes"


def test_backoff_is_explained_and_ends_by_itself() -> None:
    cell = Cell()
    cell.node("a")
    cell.job("j")
    cell.plan()
    attempt = cell.cluster.attempt(JobId("j"))
    assert attempt is not None
    cell.end("j", exit_code=1, then=JobNext.HELD)
    cell.record(facts.JobRequeued(JobId("j"), cell.now_ms + 5000))
    cell.plan()
    assert cell.reason("j") == "backoff"
    assert cell.planner.next_due_ms(cell.now_ms) == cell.now_ms + 5000
    cell.now_ms += 5000
    cell.plan()
    assert cell.where("j")


def test_failed_start_avoids_that_node_when_another_fits() -> None:
    cell = Cell()
    cell.node("a", devices=4)
    cell.node("b", devices=8)
    cell.job("j", devices=2)
    cell.plan()
    assert cell.where("j")[0][0] == "a"
    cell.end("j", exit_code=1, then=JobNext.QUEUED)
    cell.plan()
    assert cell.where("j")[0][0] == "b"


def test_attempt_resumes_from_newest_durable_checkpoint_that_its_nodes_can_load() -> None:
    cell = Cell()
    cell.node("a", devices=1)
    cell.job("j")
    cell.plan()
    saved = [("cell", Reach.CELL, 10), ("node", Reach.NODE, 20)]
    for uri, reach, step in saved:
        cell.record(
            facts.CheckpointSaved(
                JobId("j"),
                1,
                step,
                uri,
                1,
                Tier.LOCAL,
                reach,
                0,
                0,
                "m" + uri,
                False,
                False,
                "other",
            )
        )
    cell.end("j", exit_code=1, then=JobNext.QUEUED)
    place = cell.plan()[0]
    assert isinstance(place, Place)
    assert place.resume == ResumePoint(10, "cell", "mcell", 1)


def test_master_ports_of_gangs_led_from_one_node_differ() -> None:
    cell = Cell()
    cell.node("a")
    for i in range(4):
        cell.job(f"j{i}")
    cell.plan()
    ports = {attempt[-1].master_port for attempt in cell.cluster.attempts.values()}
    assert len(ports) == 4


def test_gangs_that_one_plan_gives_to_one_node_have_ports_of_their_own() -> None:
    """Their numbers ask for the same one; what a plan gives is not in the fold yet."""
    cell = Cell()
    cell.record(msgspec.structs.replace(DEFAULT_POLICY, port_count=7))
    cell.node("a")
    for i in range(7):
        cell.job(f"j{i}")
    places = [each for each in cell.plan() if isinstance(each, Place)]
    assert len({place.master_port for place in places}) == 7
    cell.end("j0")
    cell.job("next")
    (place,) = [each for each in cell.plan() if isinstance(each, Place)]
    assert place.master_port == places[0].master_port


def test_index_kept_by_touch_plans_as_one_built_anew() -> None:
    rng = random.Random(7)
    cell = Cell()
    for i in range(20):
        cell.node(f"n{i:02}", devices=rng.choice([0, 4, 8]), cpu=rng.choice([8, 64]))
    live: list[str] = []
    for i in range(300):
        name = f"j{i}"
        cell.job(
            name,
            members=rng.choice([1, 1, 2, 4]),
            devices=rng.choice([0, 1, 2, 8]),
            priority=rng.choice([0, 1]),
        )
        live.append(name)
        fresh = Planner(cell.cluster).plan(cell.now_ms, limit=10_000)
        kept = cell.planner.plan(cell.now_ms, limit=10_000)
        assert [each for each in kept if isinstance(each, Place)] == [
            each for each in fresh if isinstance(each, Place)
        ]
        cell.plan()
        for other in [each for each in live if cell.where(each)]:
            if rng.random() < 0.1:
                cell.end(other)
                live.remove(other)
        cell.now_ms += 1000
