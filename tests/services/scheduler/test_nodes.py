"""Nodes: joined, lost, fenced, back, drained. Silence alone frees nothing there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from statemachines import facts
from statemachines.node import NodeState, ServiceState
from statemachines.values import Cause, DeviceSpec, Evidence, Inventory, JobNext, Outcome, RunId
from tests.services.scheduler.begun import kinds, reason, two_nodes
from tests.services.scheduler.cell import N1, N2, A, Cell, spec
from tidemill.v1 import common_pb2, reports_pb2, requests_pb2

RUN = RunId("a.1.0")
FENCE_MS = 60_000 + 10_000


# --- joining


def test_a_node_joins_with_what_it_has() -> None:
    cell = Cell()
    cell.attach("n1", devices=1)
    device = DeviceSpec(0, "H100", "n1-0")
    inventory = Inventory("127.0.0.1", 64_000, 65_536, (device,), boot_id="boot-1")
    assert cell.step() == [facts.NodeJoined(N1, 1, inventory)]


def test_attaching_again_records_nothing_unless_something_changed() -> None:
    cell = two_nodes()
    cell.attach("n1", devices=1)
    assert cell.step() == []
    assert cell.weather() == {"attached_again": 1}
    cell.attach("n1", devices=2)
    assert kinds(cell.step()) == [facts.NodeJoined]
    assert cell.state("a") == "running"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda i: setattr(i, "cpu_milli", -1),
        lambda i: setattr(i, "memory_mib", 2**40),
        lambda i: i.devices.add(index=0, model="H100"),
        lambda i: i.devices.add(index=-1, model="H100"),
        lambda i: i.devices.add(index=5),
        lambda i: (i.nics.add(name="eth0"), i.nics.add(name="eth0")),
    ],
    ids=["cpu", "memory", "twice", "negative", "no_model", "nic_twice"],
)
def test_an_inventory_that_makes_no_sense_is_parked(
    spoil: Callable[[common_pb2.Inventory], object],
) -> None:
    inventory = common_pb2.Inventory(devices=[common_pb2.Device(index=0, model="H100")])
    spoil(inventory)
    cell = Cell()
    cell.report(reports_pb2.NodeAttached(inventory=inventory), node="n1")
    (parked,) = cell.step()
    assert isinstance(parked, facts.InputParked)
    assert parked.reason.startswith("inventory: ")


def test_a_node_without_name_or_incarnation_is_parked() -> None:
    cell = Cell()
    kind = reports_pb2.NodeAttached(inventory=common_pb2.Inventory())
    cell.report(kind, by="node:x")
    cell.report(kind, node="n1", incarnation=0)
    cell.report(kind, node="n1", incarnation=2**62)
    reasons = [fact.reason for fact in cell.step() if isinstance(fact, facts.InputParked)]
    bad = "an incarnation is at least 1, and no timestamp"
    assert reasons == ["the node is missing or longer than 256", bad, bad]


# --- lost


def test_an_overlap_safe_job_goes_on_elsewhere_at_once() -> None:
    cell = two_nodes(overlap_safe=True)
    cell.saved("a", 10)
    cell.step()
    cell.gone("n1")
    lost, ended, placed = cell.step()
    assert lost == facts.NodeLost(N1, 1, "silent for 15 s")
    assert ended == facts.AttemptEnded(
        A, 1, Outcome.LOST, Cause.NODE_LOST, "node n1 was lost", JobNext.QUEUED, 0, spared=True
    )
    assert isinstance(placed, facts.GangPlaced)
    assert (placed.placements[0].node, placed.resume.step) == (N2, 10)
    assert list(cell.cluster.usage[N1].runs) == ["a.1.0"]  # It may still live: nothing is freed.


def test_survivors_of_an_overlap_safe_gang_stop_first() -> None:
    cell = two_nodes(members=2, overlap_safe=True)
    cell.attach("n3", devices=1)
    cell.step()
    cell.gone("n1")
    assert kinds(cell.step()) == [facts.NodeLost, facts.AttemptStopping]
    cell.ended("a.1.1", signal=15)
    assert kinds(cell.step())[:2] == [facts.RunEnded, facts.AttemptEnded]
    assert cell.job("a").attempt == 2


def test_another_job_waits_for_proof_and_says_so() -> None:
    cell = two_nodes()
    cell.gone("n1")
    lost, stopping, waiting = cell.step()
    deadline_ms = cell.now_ms + 5_000
    assert lost == facts.NodeLost(N1, 1, "silent for 15 s")
    assert stopping == facts.AttemptStopping(
        A, 1, Cause.NODE_LOST, "node n1 was lost", JobNext.QUEUED, deadline_ms
    )
    assert isinstance(waiting, facts.JobWaiting)
    assert (waiting.reason.code, waiting.reason.blockers, waiting.reason.missing) == (
        "waiting_for_old_runs",
        ("n1",),
        1,
    )
    assert "70 s after the loss" in waiting.reason.message


def test_it_goes_on_when_its_agent_must_have_killed_it() -> None:
    cell = two_nodes()
    cell.gone("n1")
    cell.step()
    assert cell.step(after_ms=FENCE_MS - 1) == []
    ended, attempt, placed = cell.step(after_ms=1)
    assert ended == facts.RunEnded(
        RUN, 0, 0, Evidence.SELF_FENCED, "its agent, cut off for so long, has killed it"
    )
    assert attempt == facts.AttemptEnded(
        A, 1, Outcome.LOST, Cause.NODE_LOST, "node n1 was lost", JobNext.QUEUED, 0, spared=True
    )
    assert isinstance(placed, facts.GangPlaced)


def test_a_new_term_waits_for_the_fence_anew() -> None:
    cell = two_nodes()
    cell.gone("n1")
    cell.step()
    cell.now_ms += 50_000
    cell.take_over()
    cell.step()
    assert cell.step(after_ms=FENCE_MS - 1) == []
    assert kinds(cell.step(after_ms=1))[:2] == [facts.RunEnded, facts.AttemptEnded]


def test_a_job_may_name_its_own_fence() -> None:
    cell = two_nodes(fence_after_ms=5_000)
    cell.gone("n1")
    cell.step()
    assert kinds(cell.step(after_ms=15_000))[:2] == [facts.RunEnded, facts.AttemptEnded]


def test_a_job_that_never_fences_waits_for_its_node_or_an_operator() -> None:
    cell = two_nodes(fence_after_ms=-1)
    cell.gone("n1")
    cell.step()
    why = cell.job("a").reason
    assert why is not None and "never fences itself" in why.message
    assert cell.core.next_due_ms(cell.now_ms) is None
    key = cell.ask(requests_pb2.ConfirmNodeDead(node="n1", message="power is off"))
    ended, attempt, accepted, placed = cell.step()
    assert ended == facts.RunEnded(RUN, 0, 0, Evidence.OPERATOR_SAID, "user:alice: power is off")
    assert kinds([attempt, accepted, placed]) == [
        facts.AttemptEnded, facts.RequestAccepted, facts.GangPlaced,
    ]  # fmt: skip
    assert cell.answer(key) == ""


def test_a_gang_with_one_lost_member_waits_for_all() -> None:
    cell = two_nodes(members=2)
    cell.gone("n1")
    assert kinds(cell.step()) == [facts.NodeLost, facts.AttemptStopping]
    assert reason(cell) == "stopping_node_lost"
    cell.ended("a.1.1", signal=15)
    assert kinds(cell.step()) == [facts.RunEnded, facts.JobWaiting]
    assert reason(cell) == "waiting_for_old_runs"
    assert kinds(cell.step(after_ms=FENCE_MS))[:2] == [facts.RunEnded, facts.AttemptEnded]


def test_members_that_failed_because_of_the_lost_node_are_not_blamed() -> None:
    cell = two_nodes(members=2)
    cell.ended("a.1.1", 1, message="connection reset by peer")
    cell.step()
    assert cell.attempt("a").stop_next is JobNext.FAILED
    cell.gone("n1")
    cell.step()
    assert (cell.attempt("a").stop_cause, cell.attempt("a").stop_next) == (
        Cause.NODE_LOST,
        JobNext.QUEUED,
    )


def test_a_cancelled_job_stays_cancelled_when_its_node_is_lost() -> None:
    cell = two_nodes()
    cell.ask(requests_pb2.CancelJob(job="a"))
    cell.step()
    cell.gone("n1")
    cell.step()
    cell.step(after_ms=FENCE_MS)
    assert cell.state("a") == "cancelled"


def test_a_lost_job_that_is_cancelled_waits_for_proof_all_the_same() -> None:
    cell = two_nodes()
    cell.gone("n1")
    cell.step()
    cell.ask(requests_pb2.CancelJob(job="a"))
    cell.step()
    assert cell.state("a") == "stopping"
    cell.step(after_ms=FENCE_MS)
    assert cell.state("a") == "cancelled"


def test_a_cancelled_overlap_safe_job_is_kept_until_its_lost_run_is_known_dead() -> None:
    cell = two_nodes(overlap_safe=True)
    cell.ask(requests_pb2.CancelJob(job="a"))
    cell.gone("n1")
    cell.step()
    assert cell.state("a") == "cancelled"
    assert cell.run(after_ms=2 * cell.policy.retire_after_ms) == []
    cell.report(
        reports_pb2.RunFinished(run="a.1.0", evidence=common_pb2.EVIDENCE_KILLED_AND_REAPED),
        node="n1",
    )
    assert kinds(cell.run()) == [facts.RunEnded, facts.JobRetired]


# --- coming back


def test_a_lost_node_comes_back_only_as_a_new_incarnation() -> None:
    cell = two_nodes(overlap_safe=True)
    cell.gone("n1")
    cell.step()
    cell.attach("n1", devices=1)
    assert cell.step() == []
    assert cell.weather() == {"old_incarnation": 1}
    cell.ended("a.1.0", evidence=Evidence.KILLED_AND_REAPED, incarnation=1)
    cell.attach("n1", devices=1, incarnation=2)
    ended, joined = cell.step()
    assert ended == facts.RunEnded(RUN, 0, 0, Evidence.KILLED_AND_REAPED, "")
    assert isinstance(joined, facts.NodeJoined)
    assert (joined.incarnation, cell.cluster.nodes[N1].state) == (2, NodeState.READY)
    assert not cell.cluster.usage[N1].runs


def test_a_rejoined_node_still_owes_an_answer_for_runs_it_did_not_report() -> None:
    cell = two_nodes()
    cell.gone("n1")
    cell.step()
    cell.attach("n1", devices=1, incarnation=2)
    cell.step()
    assert list(cell.cluster.usage[N1].runs) == ["a.1.0"]
    cell.ended("a.1.0", evidence=Evidence.KILLED_AND_REAPED, incarnation=2)
    cell.step()
    assert (cell.state("a"), cell.job("a").attempt) == ("starting", 2)


def test_a_node_that_started_anew_has_ended_all_its_runs() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.running("a")
    cell.running("b", spec(overlap_safe=True))
    cell.attach("n1", boot="boot-2", incarnation=2)
    done = cell.step()
    assert kinds(done)[:5] == [
        facts.RunEnded, facts.AttemptEnded, facts.RunEnded, facts.AttemptEnded, facts.NodeJoined,
    ]  # fmt: skip
    assert done[0] == facts.RunEnded(RUN, 0, 0, Evidence.NODE_REBOOTED, "node n1 started anew")
    assert (cell.job("a").attempt, cell.job("b").attempt) == (2, 2)


def test_an_attach_of_an_earlier_boot_that_comes_late_is_no_reboot() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.attach("n1", boot="boot-2", incarnation=2)
    cell.running("a")
    cell.attach("n1", boot="boot-1", incarnation=2)
    assert kinds(cell.step()) == []
    assert (cell.state("a"), cell.weather()) == ("running", {"old_incarnation": 1})


def test_an_old_incarnation_is_not_heard_once_a_newer_one_is_there() -> None:
    cell = two_nodes()
    cell.attach("n1", devices=1, incarnation=3)
    cell.attach("n1", devices=4, incarnation=2)
    cell.step()
    assert (cell.cluster.nodes[N1].incarnation, cell.weather()) == (3, {"old_incarnation": 1})


# --- drains


def test_a_drain_asks_for_saves_stops_and_is_over_when_the_node_is_empty() -> None:
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000, message="fan"))
    deadline_ms = cell.now_ms + 60_000
    assert cell.step()[:2] == [
        facts.NodeDrainStarted(N1, deadline_ms, "fan"),
        facts.SaveAsked(A, 1, 1, deadline_ms, Cause.DRAINED, JobNext.QUEUED),
    ]
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=5))
    cell.saved("a", 5)
    cell.step()
    cell.ended("a.1.0", 0)
    done = cell.step()
    assert facts.NodeDrained(N1) in done
    assert (cell.cluster.nodes[N1].service, cell.node_of("a.2.0")) == (ServiceState.DRAINED, "n2")


def test_a_drain_ends_at_its_deadline_whoever_did_not_save() -> None:
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000))
    cell.step()
    assert cell.step(after_ms=59_999) == []
    (stop,) = cell.step(after_ms=1)
    assert isinstance(stop, facts.AttemptStopping)
    assert (stop.cause, stop.next) == (Cause.DRAINED, JobNext.QUEUED)


def test_a_drain_without_time_stops_at_once_and_an_idle_node_is_drained_at_once() -> None:
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1"))
    cell.ask(requests_pb2.DrainNode(node="n2"))
    done = cell.step()
    assert kinds(done) == [
        facts.NodeDrainStarted, facts.AttemptStopping, facts.RequestAccepted,
        facts.NodeDrainStarted, facts.RequestAccepted, facts.NodeDrained,
    ]  # fmt: skip


def test_a_starting_attempt_on_a_draining_node_is_stopped_not_asked() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.placed("a")
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000))
    assert facts.AttemptStopping in kinds(cell.step())


def test_a_shorter_drain_asks_again_with_the_earlier_deadline() -> None:
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000))
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=10_000))
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=30_000))
    asks = [
        fact.deadline_ms - cell.now_ms for fact in cell.step() if isinstance(fact, facts.SaveAsked)
    ]
    assert asks == [60_000, 10_000]


def test_uncordoning_calls_a_drain_off() -> None:
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000))
    cell.step()
    cell.ask(requests_pb2.UncordonNode(node="n1"))
    cell.saved("a", 5, by_marker=True)
    cell.step()
    assert cell.run(after_ms=120_000) == []
    assert cell.state("a") == "running"


def test_an_answer_after_the_drain_was_called_off_agrees_on_nothing() -> None:
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000))
    cell.step()
    cell.ask(requests_pb2.UncordonNode(node="n1"))
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=7))
    cell.step()
    assert cell.attempt("a").ask_step == 0
    assert cell.run(after_ms=120_000) == []
    assert cell.state("a") == "running"


@pytest.mark.parametrize("later_ms", [1_000, 3_600_000])
def test_a_drain_after_one_that_was_called_off_asks_anew(later_ms: int) -> None:
    """The old ask may be past its deadline, and an answer to it may have been ignored."""
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000))
    cell.step()
    cell.ask(requests_pb2.UncordonNode(node="n1"))
    cell.step()
    cell.step(after_ms=later_ms)
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=600_000))
    (ask,) = [fact for fact in cell.step() if isinstance(fact, facts.SaveAsked)]
    assert (ask.ask, ask.deadline_ms) == (2, cell.now_ms + 600_000)
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=2, at_step=7))
    cell.run(after_ms=120_000)
    assert cell.state("a") == "running"


def test_a_step_that_was_agreed_on_stands_when_the_drain_is_called_off() -> None:
    """Its ranks stop there, whatever the cell wants by then: that is no success, and the rest is trained."""
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000))
    cell.step()
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=7))
    cell.ask(requests_pb2.UncordonNode(node="n1"))
    cell.step()
    cell.ended("a.1.0")
    (ended,) = [fact for fact in cell.step() if isinstance(fact, facts.AttemptEnded)]
    assert (ended.cause, ended.next) == (Cause.DRAINED, JobNext.QUEUED)


def test_the_drain_of_a_lost_node_is_over_when_its_runs_are_known_dead() -> None:
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000))
    cell.gone("n1")
    cell.step()
    assert facts.NodeDrained(N1) in cell.run(after_ms=FENCE_MS)


def test_drain_deadlines_survive_a_change_of_leader() -> None:
    cell = two_nodes()
    cell.ask(requests_pb2.DrainNode(node="n1", within_ms=60_000))
    cell.step()
    cell.take_over()
    assert facts.AttemptStopping in kinds(cell.step(after_ms=60_000))
