"""Verdicts: hints until recorded. Repeats and old ones are weather; faults evict who holds what is faulty."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import Message

from statemachines import facts
from statemachines.device import DeviceState
from statemachines.nic import NicState
from statemachines.policy import DEFAULT_POLICY, Policy
from statemachines.values import Cause, JobNext, Reason
from tests.services.scheduler.cell import N1, POLICY, A, Cell, spec
from tidemill.v1 import common_pb2, verdicts_pb2

HEALTHY, DEGRADED, FAULTY = (
    verdicts_pb2.CONDITION_HEALTHY,
    verdicts_pb2.CONDITION_DEGRADED,
    verdicts_pb2.CONDITION_FAULTY,
)


def gang(members: int = 2, *, policy: Policy = POLICY) -> Cell:
    """Two nodes of one device and two NICs, on which gang `a` runs."""
    cell = Cell(policy=policy)
    for name in ("n1", "n2"):
        cell.attach(name, devices=1, nics=("ib0", "ib1"))
    cell.step()
    cell.running("a", spec(members=members))
    return cell


def device(condition: int, *, incarnation: int = 1, index: int = 0) -> Message:
    return verdicts_pb2.DeviceVerdict(
        node="n1",
        incarnation=incarnation,
        index=index,
        condition=condition,  # type: ignore[arg-type]
        reason=common_pb2.Reason(code="xid_79", message="fell off the bus"),
    )


def nic(condition: int, name: str = "ib0", *, incarnation: int = 1) -> Message:
    return verdicts_pb2.NicVerdict(
        node="n1",
        incarnation=incarnation,
        nic=name,
        condition=condition,  # type: ignore[arg-type]
        reason=common_pb2.Reason(code="link_down"),
    )


def suspect(incarnation: int = 1) -> Message:
    return verdicts_pb2.NodeSuspect(node="n1", incarnation=incarnation, silent_ms=6_000)


def back(incarnation: int = 1) -> Message:
    return verdicts_pb2.NodeBack(node="n1", incarnation=incarnation)


def unfit(incarnation: int = 1) -> Message:
    return verdicts_pb2.NodeUnfit(node="n1", incarnation=incarnation, message="broke three")


# --- liveness


def test_a_suspect_takes_nothing_new_until_it_is_back() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.verdict(suspect())
    cell.submit("a")
    assert cell.step()[0] == facts.NodeSuspected(N1, 6_000)
    assert cell.state("a") == "queued"
    cell.verdict(back())
    assert cell.step()[0] == facts.NodeRecovered(N1)
    assert cell.state("a") == "starting"


@pytest.mark.parametrize(
    "repeat",
    [
        lambda c: c.verdict(suspect(2)),
        lambda c: c.verdict(back()),
        lambda c: c.verdict(verdicts_pb2.NodeSuspect(node="n9", incarnation=1)),
        lambda c: c.gone("n1", incarnation=2),
        lambda c: c.gone("n9"),
        lambda c: c.verdict(verdicts_pb2.SilenceOver(incident="none")),
        lambda c: c.verdict(verdicts_pb2.JobHung(job="a", attempt=2)),
        lambda c: c.verdict(verdicts_pb2.JobHung(job="z", attempt=1)),
        lambda c: c.verdict(device(HEALTHY)),
        lambda c: c.verdict(device(FAULTY, index=7)),
        lambda c: c.verdict(device(FAULTY, incarnation=2)),
        lambda c: c.verdict(nic(HEALTHY)),
        lambda c: c.verdict(nic(FAULTY, "ib7")),
        lambda c: c.verdict(nic(FAULTY, incarnation=2)),
    ],
    ids=[
        "suspect_new", "back_ready", "suspect_nobody", "gone_new", "gone_nobody", "no_incident", "hung_new",
        "hung_nobody", "well_device", "no_device", "device_new", "well_nic", "no_nic", "nic_new",
    ],
)  # fmt: skip
def test_a_verdict_that_does_not_fit_changes_nothing(repeat: Callable[[Cell], None]) -> None:
    cell = gang()
    repeat(cell)
    assert cell.step() == []
    assert sum(cell.weather().values()) == 1


def test_a_verdict_said_twice_is_one() -> None:
    cell = gang()
    for _ in range(2):
        cell.verdict(suspect())
        cell.verdict(device(FAULTY))
        cell.verdict(nic(DEGRADED))
        cell.gone("n1")
        cell.verdict(verdicts_pb2.JobHung(job="a", attempt=1))
    cell.step()
    names = [type(each.fact).__name__ for each in cell.recorded]
    once = ("NodeSuspected", "DeviceFaulted", "NicDegraded", "NodeLost", "AttemptStopping")
    assert [names.count(name) for name in once] == [1] * 5


def test_no_node_is_lost_during_an_incident() -> None:
    cell = gang()
    silence = verdicts_pb2.MassSilence(incident="i1", nodes=9, message="switch")
    cell.verdict(silence)
    cell.verdict(silence)
    cell.gone("n1")
    assert cell.step() == [facts.BreakerOpened("i1", "switch", 9)]
    assert cell.weather() == {"repeated_verdict": 1, "held_back_by_incident": 1}
    cell.verdict(verdicts_pb2.SilenceOver(incident="other"))
    cell.verdict(verdicts_pb2.SilenceOver(incident="i1"))
    cell.gone("n1")
    assert [type(fact) for fact in cell.step()][:2] == [facts.BreakerClosed, facts.NodeLost]


@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        (verdicts_pb2.MassSilence(), "the incident is missing or longer than 256"),
        (device(0), "condition 0 is none that this version knows"),
        (nic(99), "condition 99 is none that this version knows"),
    ],
    ids=["incident", "device", "nic"],
)
def test_a_verdict_that_makes_no_sense_is_parked(spoiled: Message, reason: str) -> None:
    cell = gang()
    cell.verdict(spoiled)
    (parked,) = cell.step()
    assert isinstance(parked, facts.InputParked)
    assert parked.reason == reason


# --- hangs


def test_a_hung_attempt_is_stopped_and_tried_again() -> None:
    cell = gang()
    cell.verdict(verdicts_pb2.JobHung(job="a", attempt=1, silent_ms=90_000, step=7, rank=1))
    deadline_ms = cell.now_ms + 5_000
    message = "no progress for 90 s after step 7; rank 1 fell silent first"
    assert cell.step() == [
        facts.AttemptStopping(A, 1, Cause.HUNG, message, JobNext.QUEUED, deadline_ms)
    ]


def test_a_hung_attempt_is_not_given_the_time_of_one_that_may_save() -> None:
    cell = gang(policy=DEFAULT_POLICY)
    cell.verdict(verdicts_pb2.JobHung(job="a", attempt=1))
    cell.step()
    stopping = cell.cluster.find_attempt(A, 1)
    assert stopping is not None
    assert stopping.stop_deadline_ms == cell.now_ms + 5_000


def test_hanging_again_and_again_without_progress_is_held() -> None:
    cell = gang()
    for attempt in (1, 2, 3):
        cell.verdict(verdicts_pb2.JobHung(job="a", attempt=attempt))
        cell.step()
        for rank in (0, 1):
            cell.ended(f"a.{attempt}.{rank}", signal=9)
        cell.run(after_ms=60_000)
        if attempt < 3:
            cell.start("a")
    assert cell.state("a") == "held"


def test_a_stall_over_a_faulty_nic_is_the_networks() -> None:
    cell = gang()
    cell.verdict(nic(FAULTY))
    cell.step()
    assert cell.state("a") == "running"  # One of two is down: it may go on.
    cell.verdict(verdicts_pb2.JobHung(job="a", attempt=1, node="n1", nic="ib0"))
    cell.step()
    assert (cell.attempt("a").stop_cause, cell.attempt("a").stop_next) == (
        Cause.NIC_FAULT,
        JobNext.QUEUED,
    )


@pytest.mark.parametrize(
    "port",
    [("", ""), ("n1", "ib1"), ("n9", "ib0")],
    ids=["no port", "a port that works", "a port of nobody"],
)
def test_a_hang_on_a_node_with_an_old_fault_is_the_programs_as_elsewhere(
    port: tuple[str, str],
) -> None:
    """Blamed on the network it would be tried again for ever, and at once."""
    cell = gang()
    cell.verdict(nic(FAULTY))
    cell.step()
    cell.verdict(verdicts_pb2.JobHung(job="a", attempt=1, node=port[0], nic=port[1]))
    cell.step()
    assert cell.attempt("a").stop_cause is Cause.HUNG


def test_a_program_alone_is_not_excused_by_a_port_that_is_down() -> None:
    cell = gang(members=1)
    cell.verdict(nic(FAULTY))
    cell.step()
    cell.ended("a.1.0", 1)
    cell.step()
    assert cell.state("a") == "failed"


# --- devices and nics


def test_a_faulty_device_is_recorded_and_its_holder_evicted() -> None:
    cell = gang()
    cell.verdict(device(FAULTY))
    deadline_ms = cell.now_ms + 5_000
    message = "device 0 of n1 is faulty: fell off the bus"
    assert cell.step() == [
        facts.DeviceFaulted(N1, 0, Reason("xid_79", "fell off the bus")),
        facts.AttemptStopping(A, 1, Cause.DEVICE_FAULT, message, JobNext.QUEUED, deadline_ms),
    ]


def test_a_faulty_device_that_nobody_holds_evicts_nobody() -> None:
    cell = gang(members=1)
    cell.ended("a.1.0")
    cell.step()
    cell.verdict(device(FAULTY))
    assert [type(fact) for fact in cell.step()] == [facts.DeviceFaulted]


def test_conditions_follow_each_other() -> None:
    cell = Cell()
    cell.attach("n1", devices=1, nics=("ib0",))
    conditions = (DEGRADED, FAULTY, DEGRADED, HEALTHY, FAULTY, HEALTHY)
    for condition in conditions:
        cell.verdict(device(condition))
        cell.verdict(nic(condition))
    names = [type(fact).__name__ for fact in cell.step()[1:]]
    words = ("Degraded", "Faulted", "Degraded", "Recovered", "Faulted", "Recovered")
    assert names == [f"{kind}{word}" for word in words for kind in ("Device", "Nic")]
    node = cell.cluster.nodes[N1]
    assert (node.devices[0].state, node.nics[0].state) == (DeviceState.HEALTHY, NicState.HEALTHY)


def test_a_node_without_any_working_nic_loses_its_gangs_but_not_its_single_runs() -> None:
    cell = gang()
    cell.submit("b", spec(devices=0))
    cell.step()
    assert cell.node_of("b.1.0") == "n1"
    for name in ("ib0", "ib1"):
        cell.verdict(nic(FAULTY, name))
    stops = [fact for fact in cell.step() if isinstance(fact, facts.AttemptStopping)]
    assert [(fact.job, fact.cause) for fact in stops] == [("a", Cause.NIC_FAULT)]


# --- lemons


def test_an_unfit_node_takes_nothing_new_until_somebody_has_looked_at_it() -> None:
    cell = gang()
    cell.verdict(unfit())
    assert cell.step() == [facts.NodeCordoned(N1, "broke three")]
    assert cell.state("a") == "running"
    cell.verdict(unfit())  # It is known.
    cell.verdict(unfit(2))  # Of another incarnation.
    assert cell.step() == []


def test_what_runs_on_a_straggler_is_asked_for_a_save_and_then_goes_elsewhere() -> None:
    cell = gang()
    cell.verdict(verdicts_pb2.NodeUnfit(node="n1", incarnation=1, message="slow", drain_ms=60_000))
    drain, ask = cell.step()
    assert drain == facts.NodeDrainStarted(N1, cell.now_ms + 60_000, "slow")
    assert isinstance(ask, facts.SaveAsked)
    assert cell.state("a") == "running"
