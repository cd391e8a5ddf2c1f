"""Each invariant of a state is broken on purpose, by hand, and is seen; a legal history breaks none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from msgspec.structs import replace

from statemachines import facts
from statemachines.attempt import AttemptState
from statemachines.cluster import Cluster
from statemachines.invariants import unexplained, violations
from statemachines.job import JobState
from statemachines.node import NodeState
from statemachines.run import RunState
from statemachines.usage import NodeUsage, QueueUsage
from statemachines.values import (
    Cause,
    Grant,
    JobId,
    JobNext,
    NodeId,
    Outcome,
    QueueId,
    Reason,
    RunId,
)
from tests.statemachines.tour import saved, tour
from tests.statemachines.world import CELL, DEFAULT, World, placed, ready, spec

J: Final = JobId("j")
K: Final = JobId("k")
N1: Final = NodeId("n1")
R: Final = RunId("j.1.0")
S: Final = RunId("j.1.1")


def busy() -> World:
    """Job j runs on two nodes with a checkpoint; k waits."""
    world = ready()
    world.admit("j", spec(2))
    world.admit("k")
    world.start("j", 1, [("n1", [0]), ("n2", [0])])
    world.record(saved(J, 1, 10))
    return world


def test_a_legal_history_breaks_nothing_at_any_step() -> None:
    cluster = Cluster(CELL)
    for entry in tour().entries:
        cluster.fold(entry)
        assert violations(cluster) == []


def change_run(cluster: Cluster, **changes: object) -> None:
    cluster.runs[R] = replace(cluster.runs[R], **changes)


def change_attempt(cluster: Cluster, **changes: object) -> None:
    cluster.attempts[J] = (replace(cluster.attempts[J][0], **changes),)


def change_job(cluster: Cluster, job: JobId, **changes: object) -> None:
    cluster.jobs[job] = replace(cluster.jobs[job], **changes)


def second_holder(cluster: Cluster) -> None:
    change_run(cluster, node=NodeId("n2"))


def device_twice(cluster: Cluster) -> None:
    change_run(cluster, devices=(Grant(0, 1000), Grant(0, 1000)))


def half_a_gang(cluster: Cluster) -> None:
    del cluster.runs[R]


def run_of_another(cluster: Cluster) -> None:
    change_run(cluster, attempt=2)


def wrong_counter(cluster: Cluster) -> None:
    change_attempt(cluster, open=1)


def unknown_attempts(cluster: Cluster) -> None:
    cluster.attempts[JobId("x")] = cluster.attempts[J]


def another_current(cluster: Cluster) -> None:
    change_job(cluster, J, attempt=2)


def attempt_left_behind(cluster: Cluster) -> None:
    change_attempt(cluster, state=AttemptState.STOPPING)


def job_left_behind(cluster: Cluster) -> None:
    change_job(cluster, J, state=JobState.QUEUED)


def held_for_nothing(cluster: Cluster) -> None:
    change_job(cluster, K, state=JobState.HELD)


def attempt_forgotten(cluster: Cluster) -> None:
    change_job(cluster, K, attempt=1)


def wrong_restart_point(cluster: Cluster) -> None:
    change_job(cluster, J, durable_step=20)


def checkpoints_of_nobody(cluster: Cluster) -> None:
    cluster.checkpoints[JobId("x")] = cluster.checkpoints[J]


def checkpoint_twice(cluster: Cluster) -> None:
    cluster.checkpoints[J] *= 2


def overlap(cluster: Cluster) -> None:
    change_job(cluster, J, attempt=2)


def overlap_not_lost(cluster: Cluster) -> None:
    job = cluster.jobs[J]
    change_job(cluster, J, attempt=2, spec=replace(job.spec, overlap_safe=True))


def wrong_node_usage(cluster: Cluster) -> None:
    cluster.usage[N1].cpu_milli += 1


def usage_of_no_node(cluster: Cluster) -> None:
    cluster.usage[NodeId("x")] = NodeUsage()


def run_on_no_node(cluster: Cluster) -> None:
    change_run(cluster, node=NodeId("x"))


def alive_on_a_lost_node(cluster: Cluster) -> None:
    cluster.nodes[N1] = replace(cluster.nodes[N1], state=NodeState.LOST)


def wrong_queue_usage(cluster: Cluster) -> None:
    cluster.queue_usage[DEFAULT].devices -= 1


def usage_of_no_queue(cluster: Cluster) -> None:
    cluster.queue_usage[QueueId("x")] = QueueUsage()


def stray_run(cluster: Cluster) -> None:
    run = RunId("x.1.0")
    cluster.runs[run] = replace(cluster.runs[R], id=run, state=RunState.ENDED)


def run_of_no_job(cluster: Cluster) -> None:
    run = RunId("x.1.0")
    cluster.runs[run] = replace(cluster.runs[R], id=run, job=JobId("x"), devices=())


def wrong_alias(cluster: Cluster) -> None:
    cluster.job_numbers[9] = J


BROKEN: Final[tuple[tuple[Callable[[Cluster], None], str], ...]] = (
    (second_holder, "A: device 0 of n2 is held by j.1.0 and j.1.1"),
    (device_twice, "A: run j.1.0 was granted one device twice"),
    (half_a_gang, "B: attempt 1 of job j has ranks [1] of 2 members"),
    (run_of_another, "B: attempt 1 of job j names a run of another attempt"),
    (wrong_counter, "B: attempt 1 of job j counts (2, 1, 0) runs"),
    (unknown_attempts, "B: attempts of job x, which does not exist"),
    (another_current, "B: job j is at attempt 2 and has attempts [1]"),
    (attempt_left_behind, "D: job j is running, its attempt is stopping"),
    (job_left_behind, "D: job j is queued, its attempt is running"),
    (held_for_nothing, "D: job k is held without a reason"),
    (attempt_forgotten, "D: job k is at attempt 1, which is not kept"),
    (wrong_restart_point, "E: job j counts on step 20; durable are [10]"),
    (checkpoints_of_nobody, "E: checkpoints of job x, which does not exist"),
    (checkpoint_twice, "E: checkpoints of job j are at steps [10, 10]"),
    (overlap, "J: run j.1.0 is open; job j is running at 2"),
    (overlap_not_lost, "J: run j.1.0 of an ended attempt is running, not lost"),
    (wrong_node_usage, "A: usage of n1 is (4001, 1024, {0: 'j.1.0'}, ['j.1.0'])"),
    (usage_of_no_node, "A: usage is kept of other nodes than there are"),
    (run_on_no_node, "A: run j.1.0 is on x, which does not exist"),
    (alive_on_a_lost_node, "F: run j.1.0 is running on n1, which is lost"),
    (wrong_queue_usage, "H: usage of queue default is (1, 8000"),
    (usage_of_no_queue, "H: usage is kept of other queues than there are"),
    (stray_run, "B: run x.1.0 belongs to no attempt"),
    (run_of_no_job, "B: run x.1.0 belongs to no attempt"),
    (wrong_alias, "K: the aliases of jobs are not those that were given"),
)


@pytest.mark.parametrize(("defect", "told"), BROKEN, ids=[each.__name__ for each, _ in BROKEN])
def test_what_is_broken_is_told(defect: Callable[[Cluster], None], told: str) -> None:
    cluster = busy().cluster
    assert violations(cluster) == []
    defect(cluster)
    found = violations(cluster)
    assert any(line.startswith(told) for line in found), found


def test_a_job_that_waits_long_without_a_reason_is_told_late_and_not_early() -> None:
    world = ready()
    world.admit("j")
    world.record()
    assert unexplained(world.cluster, after_ms=1_000) == []
    world.record()
    line = f"D: job j waits since {world.now_ms - 2_000} without a reason"
    assert unexplained(world.cluster, after_ms=1_000) == [line]
    world.record(facts.JobWaiting(J, Reason("no_devices")))
    assert unexplained(world.cluster, after_ms=0) == []
    world.start("j", 1, [("n1", [0])])
    assert unexplained(world.cluster, after_ms=0) == []


def test_a_lost_run_of_an_overlap_safe_job_breaks_nothing() -> None:
    world = ready()
    world.admit("j", spec(overlap_safe=True))
    world.start("j", 1, [("n1", [0])])
    world.record(facts.NodeLost(N1, 1, ""))
    world.record(facts.AttemptEnded(J, 1, Outcome.LOST, Cause.NODE_LOST, "", JobNext.QUEUED, 0))
    world.record(placed("j", 2, [("n2", [0])]))
    assert violations(world.cluster) == []
