"""What one cause records is in one entry: a leader that dies between two of its entries leaves no half of it behind.

For every kind of input and decision that records several facts, the entry is filled beforehand so that it
has room up to each of them and not for the next; the leader dies after its first entry, and the next one, given the
inputs again, ends with the same state as if none had died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec
import pytest

from services.runtime import codec
from services.scheduler.draft import ENTRY_BYTES
from statemachines.cluster import Cluster
from statemachines.entry import Recorded
from statemachines.values import Resources, Role
from tests.services.scheduler.cell import POLICY, Cell, spec
from tidemill.v1 import common_pb2, reports_pb2, requests_pb2, verdicts_pb2

Prepared: TypeAlias = tuple[Cell, Callable[[], object]]
Cause: TypeAlias = Callable[[], Prepared]

FAULTY: Final = verdicts_pb2.CONDITION_FAULTY
REASON: Final = common_pb2.Reason(code="test")
FILLERS: Final = ("fill-1", "fill-2")
# Of the first, and of the second before its size is known. An input holds half a mebibyte at most.
FILL_BYTES: Final = 450_000
PROBE_BYTES: Final = 100_000


def gang(**rest: object) -> Cell:
    """Job a runs with one member on each of two nodes."""
    cell = Cell()
    for node in ("n1", "n2"):
        cell.attach(node, devices=1, nics=("ib0",))
    cell.step()
    cell.running("a", spec(members=2, **rest))  # type: ignore[arg-type]
    return cell


def first_member_fails() -> Prepared:
    cell = gang()
    return cell, lambda: cell.ended("a.1.0", 1)


def last_member_ends() -> Prepared:
    cell = gang()
    cell.ended("a.1.0")
    cell.step()
    return cell, lambda: cell.ended("a.1.1")


def last_member_of_a_stopping_one_ends() -> Prepared:
    cell, fails = first_member_fails()
    fails()
    cell.step()
    return cell, lambda: cell.ended("a.1.1", signal=15)


def last_member_begins() -> Prepared:
    cell = Cell()
    cell.nodes("n1", "n2", devices=1)
    cell.placed("a", spec(members=2))
    cell.began("a.1.0")
    cell.step()
    return cell, lambda: cell.began("a.1.1")


def node_is_lost() -> Prepared:
    cell = gang()
    return cell, lambda: cell.gone("n1")


def node_of_a_job_that_may_overlap_is_lost() -> Prepared:
    cell = Cell()
    cell.nodes("n1", "n2")
    for job in "ab":
        cell.running(job, spec(overlap_safe=True))
    return cell, lambda: cell.gone(cell.node_of("a.1.0"))


def node_starts_anew() -> Prepared:
    cell = gang()
    return cell, lambda: cell.attach("n1", devices=1, incarnation=2, boot="boot-2", nics=("ib0",))


def lost_node_is_confirmed_dead() -> Prepared:
    cell, is_lost = node_is_lost()
    is_lost()
    cell.step()
    cell.ended("a.1.1", signal=15)
    cell.step()
    return cell, lambda: cell.ask(requests_pb2.ConfirmNodeDead(node="n1"))


def device_is_faulty() -> Prepared:
    cell = gang()
    return cell, lambda: cell.verdict(
        verdicts_pb2.DeviceVerdict(
            node="n1", incarnation=1, index=0, condition=FAULTY, reason=REASON
        )
    )


def only_port_is_faulty() -> Prepared:
    cell = gang()
    return cell, lambda: cell.verdict(
        verdicts_pb2.NicVerdict(
            node="n1", incarnation=1, nic="ib0", condition=FAULTY, reason=REASON
        )
    )


def something_else_was_loaded() -> Prepared:
    cell = gang()
    return cell, lambda: cell.report(
        reports_pb2.Resumed(job="a", attempt=1, step=5, uri="file:///else", manifest="m")
    )


def resumed() -> Cell:
    """A second attempt runs from step 10."""
    cell = gang()
    cell.saved("a", 5)
    cell.saved("a", 10)
    cell.ended("a.1.0", signal=9)
    cell.ended("a.1.1", signal=9)
    cell.run(after_ms=60_000)
    cell.start("a")
    return cell


def checkpoint_does_not_load() -> Prepared:
    cell = resumed()
    return cell, lambda: cell.report(
        reports_pb2.LoadFailed(job="a", attempt=2, step=10, message="bad digest")
    )


def asked_save_is_durable() -> Prepared:
    cell = gang(keep_checkpoints=1)
    cell.saved("a", 10)
    cell.ask(requests_pb2.RequeueJob(job="a", save_first=True))
    cell.step()
    cell.report(reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=20))
    cell.step()
    return cell, lambda: cell.saved("a", 20)


def asked_step_was_saved_already() -> Prepared:
    cell = gang()
    cell.ask(requests_pb2.RequeueJob(job="a", save_first=True))
    cell.step()
    cell.saved("a", 10)
    cell.step()
    return cell, lambda: cell.report(
        reports_pb2.SaveAnswered(job="a", attempt=1, ask=1, at_step=10)
    )


def node_is_drained_at_once() -> Prepared:
    cell = gang()
    return cell, lambda: cell.ask(requests_pb2.DrainNode(node="n1"))


def job_is_cancelled() -> Prepared:
    cell = gang()
    return cell, lambda: cell.ask(requests_pb2.CancelJob(job="a"))


def job_that_may_overlap_is_held_when_all_of_it_is_lost() -> Prepared:
    """Its stop and its end are one."""
    cell = gang(overlap_safe=True)
    cell.gone("n1")
    cell.ask(requests_pb2.HoldJob(job="a"))
    cell.step()
    return cell, lambda: cell.gone("n2")


def newer_checkpoint_is_left_behind() -> Prepared:
    cell = Cell()
    cell.nodes("n1", "n2", devices=1)
    cell.running("a", spec(overlap_safe=True))
    cell.saved("a", 10)
    cell.saved("a", 20, reach="NODE", node=cell.node_of("a.1.0"))
    cell.step()
    return cell, lambda: cell.gone(cell.node_of("a.1.0"))


CAUSES: Final = (
    first_member_fails, last_member_ends, last_member_of_a_stopping_one_ends, last_member_begins, node_is_lost,
    node_of_a_job_that_may_overlap_is_lost, node_starts_anew, lost_node_is_confirmed_dead, device_is_faulty,
    only_port_is_faulty, something_else_was_loaded, checkpoint_does_not_load, asked_save_is_durable,
    asked_step_was_saved_already, node_is_drained_at_once, job_is_cancelled,
    job_that_may_overlap_is_held_when_all_of_it_is_lost, newer_checkpoint_is_left_behind,
)  # fmt: skip


def fill(cell: Cell, second_bytes: int) -> None:
    """Two held jobs of that size come before what is sent next."""
    for job, size in zip(FILLERS, (FILL_BYTES, second_bytes), strict=True):
        labels = (("x", "x" * size),)
        cell.submit(job, spec(held=True, labels=labels), key=f"user:fill/{job}")


def sizes(recorded: Iterable[Recorded]) -> list[int]:
    """Of what follows the fillers, after that of the fillers."""
    every = [len(codec.encode_fact(each)) for each in recorded]
    return [sum(every[:2]), *every[2:]]


def world(cluster: Cluster) -> dict[str, object]:
    """What is true of the cell, whoever led it."""
    return {
        "jobs": {name: job for name, job in cluster.jobs.items() if name not in FILLERS},
        "attempts": cluster.attempts,
        "runs": cluster.runs,
        "checkpoints": cluster.checkpoints,
        "nodes": cluster.nodes,
        "positions": cluster.positions,
        "answers": {key: answer.code for key, answer in cluster.answers.items()},
    }


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
def test_dying_between_two_entries_changes_nothing_in_the_end(cause: Cause) -> None:
    whole, send = cause()
    fill(whole, PROBE_BYTES)
    send()
    assert len(whole.step()) > 3, "one fact alone is whole anyhow"
    assert len(whole.steps[-1].sealed) == 1
    filled, *after = sizes(whole.steps[-1].sealed[0].entry.facts)
    for count in range(1, len(after)):
        # Room for `count` of its facts, to the byte, and none for the next.
        room = ENTRY_BYTES - filled - sum(after[:count])
        cell, send = cause()
        fill(cell, PROBE_BYTES + room)
        send()
        inputs = cell.take_inputs()
        step = cell.core.step(inputs, cell.now_ms)
        assert step is not None and len(step.sealed) == 2
        cell.append(step.sealed[0].value)  # And then the leader dies.
        cell.take_over()
        cell.give(inputs)
        cell.run()
        assert world(cell.cluster) == world(whole.cluster), f"died after {count} of {after}"


def fenced_by_time() -> Cell:
    """The only run of a stopping attempt is known to have been killed by now."""
    cell = Cell()
    cell.nodes("n1", devices=1)
    cell.running("a")
    cell.gone("n1")
    cell.run(after_ms=0)
    cell.now_ms += POLICY.fence_after_ms + POLICY.fence_margin_ms
    return cell


def test_what_is_due_is_whole_too() -> None:
    """The next leader waits anew, so it is the end that counts: the attempt is not left without a run and without an end."""
    whole = fenced_by_time()
    fill(whole, PROBE_BYTES)
    names = [type(fact).__name__ for fact in whole.step()]
    assert names == ["JobAdmitted", "JobAdmitted", "RunEnded", "AttemptEnded", "JobWaiting"]
    filled, run_ended, *_ = sizes(whole.steps[-1].sealed[0].entry.facts)
    cell = fenced_by_time()
    fill(cell, PROBE_BYTES + ENTRY_BYTES - filled - run_ended)
    inputs = cell.take_inputs()
    step = cell.core.step(inputs, cell.now_ms)
    assert step is not None and len(step.sealed) == 2
    cell.append(step.sealed[0].value)
    cell.take_over()
    cell.give(inputs)
    cell.run(after_ms=POLICY.fence_after_ms + POLICY.fence_margin_ms)
    assert cell.state("a") == "queued"


def test_what_no_entry_can_hold_is_split_and_taken_up_again() -> None:
    """A node with thousands of jobs: the next leader is told again that it is gone, and goes on where the last one was."""
    cell = Cell()
    node = "n" * 250
    cell.nodes(node)
    roles = (Role("worker", 1, Resources(1, 1, 0)),)
    cell.submit("a", msgspec.structs.replace(spec(), roles=roles), count=1_200)
    cell.step()
    cell.gone(node)
    inputs = cell.take_inputs()
    step = cell.core.step(inputs, cell.now_ms)
    assert step is not None and len(step.sealed) > 1
    cell.append(step.sealed[0].value)
    cell.take_over()
    cell.give(inputs)
    cell.run()
    assert {job.state for job in cell.cluster.jobs.values()} == {"stopping"}
