"""Corners of the plan: no aging, other settings half-way, CPU and memory, ports that run out, growth beyond memory."""

from __future__ import annotations

import pytest

from planning import capacity
from planning.decisions import Place
from planning.restart import avoid, broken_by, master_port
from statemachines import facts
from statemachines.values import (
    Cause,
    Evidence,
    JobId,
    JobNext,
    NicSpec,
    NodeId,
    Outcome,
    QueueId,
    Reason,
    RunId,
)
from tests.planning.build import Cell


def settings(cell: Cell, **changes: int) -> None:
    """The leader records other settings."""
    present = {
        name: getattr(cell.cluster.policy, name) for name in facts.PolicyApplied.__struct_fields__
    }
    cell.record(facts.PolicyApplied(**{**present, **changes}))


def reason_of(cell: Cell, name: str) -> Reason:
    reason = cell.cluster.jobs[JobId(name)].reason
    assert reason is not None
    return reason


def test_without_aging_priority_is_never_outweighed() -> None:
    cell = Cell()
    settings(cell, aging_ms_per_point=0)
    cell.node("a", devices=1)
    cell.job("busy")
    cell.plan()
    cell.job("old", priority=0)
    cell.now_ms += 10**12
    cell.job("young", priority=0)
    cell.job("important", priority=1)
    for before in ("busy", "important", "old"):
        cell.end(before)
        cell.plan()
    assert cell.where("young")
    order = [cell.cluster.attempt(JobId(name)) for name in ("important", "old", "young")]
    assert all(attempt is not None for attempt in order)


def test_other_settings_put_the_line_in_another_order() -> None:
    cell = Cell()
    cell.node("a", devices=1)
    cell.job("busy")
    cell.plan()
    cell.job("old")
    cell.now_ms += 2 * cell.cluster.policy.aging_ms_per_point
    cell.job("important", priority=1)
    cell.plan()
    settings(cell, aging_ms_per_point=0)
    cell.end("busy")
    cell.plan()
    assert cell.where("important")
    assert not cell.where("old")


def test_a_queues_cpu_limit_is_told_with_numbers() -> None:
    cell = Cell()
    cell.record(facts.QueueApplied(QueueId("small"), "", -1, 4_000, -1))
    cell.node("a")
    cell.job("first", devices=0, cpu=3, queue="small")
    cell.job("second", devices=0, cpu=2, queue="small")
    cell.job("devices", devices=1, cpu=2, queue="small")
    cell.plan()
    assert cell.where("first")
    reason = reason_of(cell, "second")
    assert (reason.code, reason.blockers, reason.missing) == ("queue_cpu_limit", ("small",), 1_000)
    assert "holds 3 of its 4 CPUs; this needs 2" in reason.message


def test_memory_decides_where_a_member_fits_and_is_in_the_reason() -> None:
    cell = Cell()
    cell.node("little", devices=0, memory=1_000)
    cell.node("much", devices=0, memory=4_000)
    for name in ("one", "two"):
        cell.job(name, devices=0, cpu=0, memory=3_000)
    cell.job("huge", devices=0, cpu=0, memory=9_000)
    cell.plan()
    assert cell.where("one") == [("much", ())]
    assert reason_of(cell, "two").code == "waiting_for_capacity"
    assert "1 x 0 CPU + 3000 MiB missing" in reason_of(cell, "two").message
    assert reason_of(cell, "huge").code == "no_capable_nodes"


def test_a_gang_that_fits_but_for_its_last_member_gives_its_cpus_back() -> None:
    cell = Cell()
    cell.node("a", devices=0, cpu=4)
    cell.job("gang", members=3, devices=0, cpu=2)
    cell.job("one", devices=0, cpu=4)
    cell.plan()
    assert cell.where("one") == [("a", ())]


def test_a_job_that_ended_while_it_backed_off_is_not_placed() -> None:
    cell = Cell()
    cell.node("a")
    for name in ("gone", "kept"):
        cell.job(name)
    cell.plan()
    for name in ("gone", "kept"):
        cell.end(name, exit_code=1, then=JobNext.HELD)
        cell.record(facts.JobRequeued(JobId(name), cell.now_ms + 5_000))
    cell.plan()
    cell.record(facts.JobCancelled(JobId("gone"), ""))
    cell.now_ms += 5_000
    assert [decision.job for decision in cell.plan() if isinstance(decision, Place)] == ["kept"]


def test_a_job_that_ended_before_its_backoff_was_told_is_not_told() -> None:
    cell = Cell()
    cell.node("a")
    cell.job("gone")
    cell.plan()
    cell.end("gone", exit_code=1, then=JobNext.HELD)
    cell.record(facts.JobRequeued(JobId("gone"), cell.now_ms + 5_000))
    assert cell.planner.next_due_ms(cell.now_ms) == cell.now_ms + 5_000
    cell.record(facts.JobCancelled(JobId("gone"), ""))
    assert cell.plan() == []


def test_when_every_port_is_taken_gangs_share_one() -> None:
    cell = Cell()
    settings(cell, port_first=30_000, port_count=1)
    cell.node("a")
    cell.job("one")
    cell.job("two")
    cell.plan()
    job = cell.cluster.jobs[JobId("two")]
    assert master_port(cell.cluster, job, NodeId("a")) == 30_000
    settings(cell, port_first=30_000, port_count=2)
    assert master_port(cell.cluster, job, NodeId("a")) == 30_001


def test_ports_of_members_that_lead_nothing_are_free() -> None:
    cell = Cell()
    settings(cell, port_first=30_000, port_count=1)
    for name in ("a", "b"):
        cell.node(name, devices=1)
    cell.job("gang", members=2)
    cell.plan()
    led = cell.cluster.runs[RunId("gang.1.1")].node
    assert master_port(cell.cluster, cell.cluster.jobs[JobId("gang")], led) == 30_000


def three() -> Cell:
    """A gang of three members, each alone on a node; it lands the same way each time."""
    cell = Cell()
    for name in ("a", "b", "c"):
        cell.node(name, devices=1, nics=(NicSpec("eth0"),))
    cell.job("gang", members=3)
    cell.plan()
    return cell


def gang_ends(cause: Cause, *before: facts.Fact, evidence: Evidence, code: int = 0) -> set[int]:
    """The ranks whose nodes a gang of three avoids next: rank 1 ends as told, the others follow, told to stop."""
    cell = three()
    runs = [cell.cluster.runs[RunId(f"gang.1.{rank}")] for rank in range(3)]
    for run in (runs[0], runs[2]):
        cell.record(facts.RunStarted(run.id))
    for fact in before:
        cell.record(fact)
    ends = ((1, Evidence.EXIT_STATUS), (code, evidence), (143, Evidence.KILLED_AND_REAPED))
    for run, (exit_code, how) in zip(runs, ends, strict=True):
        cell.record(facts.RunEnded(run.id, exit_code, 0, how, ""))
    ended = (Outcome.FAILED, cause, "", JobNext.QUEUED, 0)
    cell.record(facts.AttemptEnded(JobId("gang"), 1, *ended))
    avoided = avoid(cell.cluster, cell.cluster.jobs[JobId("gang")])
    return {run.rank for run in runs if run.node in avoided}


FAULT = Reason("test", "as told")


@pytest.mark.parametrize(
    ("cause", "evidence"),
    [
        (Cause.NODE_LOST, Evidence.SELF_FENCED),
        (Cause.NODE_LOST, Evidence.FENCE_CONFIRMED),
        (Cause.NODE_LOST, Evidence.NODE_REBOOTED),
        (Cause.NODE_LOST, Evidence.OPERATOR_SAID),
        (Cause.START_FAILED, Evidence.NEVER_STARTED),
    ],
)
def test_only_the_node_that_failed_is_avoided_and_none_of_members_that_followed(
    cause: Cause, evidence: Evidence
) -> None:
    assert gang_ends(cause, evidence=evidence) == {1}


def test_nodes_with_the_fault_that_ended_the_attempt_are_avoided() -> None:
    where = three().cluster.runs[RunId("gang.1.1")].node
    device, nic = facts.DeviceFaulted(where, 0, FAULT), facts.NicFaulted(where, "eth0", FAULT)
    exited = Evidence.EXIT_STATUS
    assert gang_ends(Cause.DEVICE_FAULT, device, evidence=exited) == {1}
    assert gang_ends(Cause.DEVICE_FAULT, nic, evidence=exited) == set()
    assert gang_ends(Cause.NIC_FAULT, nic, evidence=exited) == {1}
    assert gang_ends(Cause.NIC_FAULT, device, evidence=exited) == set()


def test_a_program_that_asks_for_other_hardware_gets_it_and_any_other_failure_blames_no_node() -> (
    None
):
    exited = Evidence.EXIT_STATUS
    assert gang_ends(Cause.PROGRAM_FAILED, evidence=exited, code=16) == {1}
    assert gang_ends(Cause.PROGRAM_FAILED, evidence=exited, code=1) == set()


@pytest.mark.parametrize(
    ("code", "nodes", "kept"), [(16, 4, set()), (16, 3, {"a"}), (16, 2, {"a", "b"}), (17, 4, {"a"})]
)
def test_a_gang_that_asks_for_other_nodes_leaves_all_of_its_own_where_there_are_others(
    code: int, nodes: int, kept: set[str]
) -> None:
    """Who hears nothing from a peer is not to blame more than the peer; where nodes are few, only who asked leaves."""
    cell = Cell()
    for name in "abcd"[:nodes]:
        cell.node(name, devices=1)
    cell.job("gang", members=2)
    cell.plan()
    first, second = (cell.cluster.runs[RunId(f"gang.1.{rank}")] for rank in range(2))
    assert (first.node, second.node) == ("a", "b")
    cell.record(facts.RunEnded(second.id, code, 0, Evidence.EXIT_STATUS, ""))
    cell.record(facts.RunEnded(first.id, 143, 0, Evidence.KILLED_AND_REAPED, ""))
    ended = (Outcome.FAILED, Cause.PROGRAM_FAILED, "", JobNext.QUEUED, 0)
    cell.record(facts.AttemptEnded(JobId("gang"), 1, *ended))
    cell.plan()
    now = {cell.cluster.runs[RunId(f"gang.2.{rank}")].node for rank in range(2)}
    assert now & {"a", "b"} == kept


@pytest.mark.parametrize("cause", [Cause.DEVICE_FAULT, Cause.NIC_FAULT])
def test_a_node_that_was_removed_is_blamed_for_nothing(cause: Cause) -> None:
    cell = three()
    attempt = cell.cluster.attempt(JobId("gang"))
    assert attempt is not None
    for run in attempt.runs:
        cell.record(facts.RunEnded(run, 1, 0, Evidence.EXIT_STATUS, ""))
    ended = (Outcome.FAILED, cause, "", JobNext.QUEUED, 0)
    cell.record(facts.AttemptEnded(JobId("gang"), 1, *ended))
    for node in list(cell.cluster.nodes):
        cell.record(facts.NodeCordoned(node, ""))
        cell.record(facts.NodeRemoved(node))
    assert avoid(cell.cluster, cell.cluster.jobs[JobId("gang")]) == set()


def test_exit_codes_blame_no_hardware() -> None:
    assert blamed(Cause.NODE_LOST, Evidence.NODE_REBOOTED, 0) == {1}
    assert blamed(Cause.DEVICE_FAULT, Evidence.EXIT_STATUS, 17) == set()
    assert blamed(Cause.START_FAILED, Evidence.NEVER_STARTED, 0) == set()


def blamed(cause: Cause, evidence: Evidence, code: int) -> set[int]:
    """The ranks on whose nodes a gang of three broke when rank 1 ended so."""
    cell = three()
    runs = [cell.cluster.runs[RunId(f"gang.1.{rank}")] for rank in range(3)]
    for run in runs:
        how, exit_code = (evidence, code) if run.rank == 1 else (Evidence.EXIT_STATUS, 1)
        cell.record(facts.RunEnded(run.id, exit_code, 0, how, ""))
    ended = (Outcome.FAILED, cause, "", JobNext.QUEUED, 0)
    cell.record(facts.AttemptEnded(JobId("gang"), 1, *ended))
    attempt = cell.cluster.attempt(JobId("gang"))
    assert attempt is not None
    nodes = broken_by(cell.cluster, attempt)
    return {run.rank for run in runs if run.node in nodes}


def test_members_on_a_lost_node_are_what_is_avoided() -> None:
    cell = Cell()
    for name in ("a", "b"):
        cell.node(name, devices=1)
    cell.job("gang", members=2, overlap_safe=True)
    cell.plan()
    lost, kept = (cell.cluster.runs[RunId(f"gang.1.{rank}")] for rank in range(2))
    cell.record(facts.NodeLost(lost.node, 1, ""))
    cell.record(facts.RunEnded(kept.id, 1, 0, Evidence.EXIT_STATUS, ""))
    ended = (Outcome.LOST, Cause.NODE_LOST, "", JobNext.QUEUED, 0)
    cell.record(facts.AttemptEnded(JobId("gang"), 1, *ended))
    assert avoid(cell.cluster, cell.cluster.jobs[JobId("gang")]) == {lost.node}


def test_growth_beyond_what_is_remembered_makes_the_waiting_look_at_everything() -> None:
    cell = Cell()
    cell.node("a", devices=1)
    cell.job("busy")
    cell.job("waits")
    cell.plan()
    index = cell.planner._capacity
    for _ in range(capacity._GROWTH_KEPT + 1):
        index._grow(NodeId("a"))
    assert not index.remembers(0)
    cell.end("busy")
    cell.plan()
    assert cell.where("waits")


@pytest.mark.parametrize("fact", [facts.NicDegraded, facts.NicFaulted])
def test_a_node_whose_network_is_not_whole_is_the_last_that_a_gang_takes(
    fact: type[facts.NicDegraded | facts.NicFaulted],
) -> None:
    cell = Cell()
    for name in ("a", "b", "c"):
        cell.node(name, devices=1, nics=(NicSpec("ib0"), NicSpec("ib1")))
    cell.record(fact(NodeId("a"), "ib0", FAULT))
    cell.job("first", members=2)
    cell.job("second")
    cell.plan()
    assert cell.where("first") == [("b", (0,)), ("c", (0,))]
    assert cell.where("second") == [("a", (0,))]


def test_a_node_whose_network_is_whole_again_comes_first_again() -> None:
    cell = Cell()
    for name in ("a", "b"):
        cell.node(name, devices=1, nics=(NicSpec("ib0"), NicSpec("ib1")))
    cell.record(facts.NicDegraded(NodeId("a"), "ib0", FAULT))
    assert cell.plan() == []
    cell.record(facts.NicRecovered(NodeId("a"), "ib0"))
    cell.job("one")
    cell.plan()
    assert cell.where("one") == [("a", (0,))]
