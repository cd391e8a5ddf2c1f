"""Each invariant of a step: what breaks it is told before the cluster takes it."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from statemachines import facts
from statemachines.entry import Position, Recorded
from statemachines.policy import DEFAULT_POLICY
from statemachines.values import (
    Cause,
    Evidence,
    Grant,
    JobId,
    JobNext,
    NodeId,
    Outcome,
    QueueId,
    Reach,
    Reason,
    ResumePoint,
    RunId,
)
from statemachines.watcher import LOSSES_LEAST, Watcher
from tests.statemachines.tour import saved
from tests.statemachines.world import DEFAULT, START_MS, World, placed, ready, spec

J: Final = JobId("j")
K: Final = JobId("k")
N1: Final = NodeId("n1")
R: Final = RunId("j.1.0")
WHY: Final = Reason("why")


def see(world: World, fact: facts.Fact, *, by: str = "", cause: int = 0) -> list[str]:
    return Watcher().see(world.cluster, Recorded(fact, by, cause), world.now_ms)


@pytest.fixture
def world() -> World:
    """Job j of two members and k of one wait; n1 has device 3 faulty."""
    world = ready()
    world.admit("j", spec(2))
    world.admit("k")
    world.record(facts.DeviceFaulted(N1, 3, WHY))
    return world


def test_a_good_placement_breaks_nothing(world: World) -> None:
    assert see(world, placed("j", 1, [("n1", [0]), ("n2", [0])])) == []
    assert see(world, facts.JobHeld(J, WHY)) == []


GANG: Final = placed("j", 1, [("n1", [0]), ("n2", [0])])
FIRST, SECOND = GANG.placements


@pytest.mark.parametrize(
    ("gang", "told"),
    [
        (placed("j", 1, [("n1", [0])]), "B: job j is placed as {'worker': 1}"),
        (
            replace(GANG, placements=(FIRST, replace(SECOND, rank=0))),
            "B: job j is placed with runs [('j.1.0', 0), ('j.1.1', 0)]",
        ),
        (
            replace(GANG, placements=(FIRST, replace(SECOND, cpu_milli=1))),
            "B: run j.1.1 gets (1, 1024, 1), not what its role asks for",
        ),
        (placed("j", 1, [("n1", [0]), ("n9", [0])]), "F: run j.1.1 is placed on n9, which is unknown"),
        (placed("j", 1, [("n1", [0]), ("n1", [3])]), "A: run j.1.1 is granted Grant(index=3"),
        (placed("j", 1, [("n1", [0]), ("n1", [9])]), "A: run j.1.1 is granted Grant(index=9"),
        (placed("j", 1, [("n1", [0]), ("n1", [0])]), "A: run j.1.1 is granted Grant(index=0"),
        (
            replace(GANG, placements=(FIRST, replace(SECOND, devices=(Grant(0, 500),)))),
            "A: run j.1.1 is granted Grant(index=0, milli=500)",
        ),
        (
            replace(GANG, placements=(FIRST, replace(SECOND, cpu_milli=99_000))),
            "A: run j.1.1 does not fit on n2",
        ),
        (
            replace(GANG, placements=(FIRST, replace(SECOND, memory_mib=99_000))),
            "A: run j.1.1 does not fit on n2",
        ),
        (
            replace(GANG, resume=ResumePoint(5, "file:///c", "m", 1)),
            "E: job j resumes from ResumePoint(step=5",
        ),
        (
            replace(GANG, placements=(FIRST, replace(SECOND, role="boss"))),
            "B: job j is placed as {'worker': 1, 'boss': 1}",
        ),
    ],
    ids=[
        "half", "ranks", "less than asked", "unknown node", "faulty", "no such device", "twice",
        "half a device", "cpu", "memory", "not durable", "unknown role",
    ],
)  # fmt: skip
def test_a_bad_placement_is_told(world: World, gang: facts.GangPlaced, told: str) -> None:
    found = see(world, gang)
    assert any(line.startswith(told) for line in found), found


@pytest.mark.parametrize(
    ("closing", "how"),
    [
        (facts.NodeSuspected(N1, 6_000), "suspect, in_service"),
        (facts.NodeLost(N1, 1, ""), "lost, in_service"),
        (facts.NodeCordoned(N1, ""), "ready, cordoned"),
    ],
    ids=["suspect", "lost", "cordoned"],
)
def test_nothing_is_placed_on_a_node_that_is_not_open(
    world: World, closing: facts.Fact, how: str
) -> None:
    world.record(closing)
    told = f"F: run k.1.0 is placed on n1, which is {how}"
    assert see(world, placed("k", 1, [("n1", [0])])) == [told]


def test_a_device_that_another_run_holds_is_told(world: World) -> None:
    world.start("k", 1, [("n1", [0])])
    told = see(world, placed("j", 1, [("n1", [0]), ("n2", [0])]))
    assert told == [
        "A: run j.1.0 is granted Grant(index=0, milli=1000) of n1, which it cannot have"
    ]


def test_a_placement_stays_within_the_limits_of_the_whole_line(world: World) -> None:
    world.record(facts.QueueApplied(DEFAULT, "", 1, 7_999, -1))
    assert see(world, GANG) == [
        "H: job j takes queue default over 1 devices",
        "H: job j takes queue default over 7999 milli-CPU",
    ]
    world.record(facts.QueueApplied(DEFAULT, "", 2, 8_000, -1))
    assert see(world, GANG) == []


def test_jobs_stay_within_the_limit_of_their_queue(world: World) -> None:
    array = facts.JobAdmitted(JobId("m"), 3, 2, spec(), "ann/m", b"")
    assert see(world, array) == []
    world.record(facts.QueueApplied(DEFAULT, "", -1, -1, 3))
    assert see(world, array) == ["H: queue default may have 3 jobs and gets 4"]
    assert see(world, replace(array, count=0)) == []


def test_a_backoff_is_kept(world: World) -> None:
    due = world.now_ms + 50_000
    world.start("k", 1, [("n1", [0])])
    world.record(facts.RunEnded(RunId("k.1.0"), 1, 0, Evidence.EXIT_STATUS, ""))
    world.record(
        facts.AttemptEnded(K, 1, Outcome.FAILED, Cause.PROGRAM_FAILED, "", JobNext.QUEUED, due)
    )
    assert see(world, placed("k", 2, [("n1", [0])])) == [f"G: job k is placed before {due}"]
    world.now_ms = due
    assert see(world, placed("k", 2, [("n1", [0])])) == []


def test_two_attempts_never_run_at_once(world: World) -> None:
    world.start("k", 1, [("n1", [0])])
    assert see(world, placed("k", 2, [("n2", [0])])) == ["J: attempt 1 of job k has 1 open runs"]


def test_an_overlap_safe_job_may_leave_only_lost_runs(world: World) -> None:
    world.admit("o", spec(overlap_safe=True))
    world.start("o", 1, [("n1", [0])])
    again = placed("o", 2, [("n2", [0])])
    assert see(world, again) == ["J: attempt 1 of job o has 1 open runs"]
    world.record(facts.NodeLost(N1, 1, ""))
    assert see(world, again) == []


def resumed(world: World, resume: ResumePoint) -> list[str]:
    return see(world, placed("k", 2, [("n2", [0])], resume=resume))


def test_a_resume_is_from_a_durable_checkpoint_and_no_older_than_needed(world: World) -> None:
    world.start("k", 1, [("n1", [0])])
    old, new = saved(K, 1, 10), saved(K, 1, 20)
    here = replace(saved(K, 1, 30), reach=Reach.NODE, node="n1")
    world.record(old, new, here, facts.CheckpointStarted(K, 1, 40))
    world.record(facts.RunEnded(RunId("k.1.0"), 0, 9, Evidence.EXIT_STATUS, ""))
    world.record(
        facts.AttemptEnded(K, 1, Outcome.FAILED, Cause.PROGRAM_FAILED, "", JobNext.QUEUED, 0)
    )

    def point(save: facts.CheckpointSaved) -> ResumePoint:
        return ResumePoint(save.step, save.uri, save.manifest, save.attempt)

    assert resumed(world, point(new)) == []
    assert resumed(world, point(here)) == []
    for bad, told in (
        (point(old), "though step 20 is durable"),
        (ResumePoint(), "though step 20 is durable"),
        (ResumePoint(25), "though step 20 is durable"),
        (ResumePoint(40, "file:///unfinished", "", 1), "which is not durable"),
        (replace(point(new), uri="file:///other"), "which is not durable"),
        (replace(point(new), attempt=2), "which is not durable"),
    ):
        (line,) = resumed(world, bad)
        assert line.startswith("E: job k resumes from")
        assert line.endswith(told)


def test_the_restart_point_is_not_released(world: World) -> None:
    world.start("k", 1, [("n1", [0])])
    world.record(saved(K, 1, 10), saved(K, 1, 20))
    assert see(world, facts.CheckpointReleased(K, 10)) == []
    told = ["E: job k counts on step 20, which is released"]
    assert see(world, facts.CheckpointReleased(K, 20)) == told


@pytest.mark.parametrize("by_job", [0, 5_000, -1], ids=["of the cell", "of the job", "never"])
def test_a_fence_that_nobody_reported_is_believed_only_after_its_time(by_job: int) -> None:
    world = ready()
    world.admit("j", replace(spec(), fence_after_ms=by_job))
    world.start("j", 1, [("n1", [0])])
    fenced = facts.RunEnded(R, 0, 0, Evidence.SELF_FENCED, "")
    told = ["J: run j.1.0 is taken as fenced at {}, which is too early"]

    def early() -> list[str]:
        return [line.format(world.now_ms) for line in told]

    assert see(world, fenced) == early()  # Not even lost.
    world.record(facts.NodeLost(N1, 1, ""))
    world.open_term("leader-2")  # A new leader cannot know how long the agent was cut off before.
    wait_ms = (by_job or DEFAULT_POLICY.fence_after_ms) + DEFAULT_POLICY.fence_margin_ms
    world.now_ms += wait_ms - 1
    assert see(world, fenced) == early()
    world.now_ms += 1
    assert see(world, fenced) == ([] if by_job >= 0 else early())
    assert see(world, fenced, cause=1) == []  # The agent said so.
    assert see(world, replace(fenced, evidence=Evidence.OPERATOR_SAID)) == []


def test_nodes_are_given_up_one_by_one() -> None:
    world = ready()
    for i in range(3, 9):
        world.node(f"n{i}")
    watcher = Watcher()

    def lose(i: int, at_ms: int, by: str = "") -> list[str]:
        fact = facts.NodeLost(NodeId(f"n{i}"), 1, "")
        return watcher.see(world.cluster, Recorded(fact, by), at_ms)

    for i in range(1, LOSSES_LEAST + 1):
        assert lose(i, START_MS + i) == []
    assert lose(8, START_MS + 10, by="root") == []
    assert lose(4, START_MS + 60_000) == ["I: 4 of 8 nodes are lost within a minute"]
    assert lose(5, START_MS + 119_999) == []


def test_no_node_is_given_up_during_an_incident(world: World) -> None:
    world.record(facts.BreakerOpened("i1", "all silent", 2))
    assert see(world, facts.NodeLost(N1, 1, "")) == ["I: node n1 is lost during incident i1"]
    assert see(world, facts.NodeLost(N1, 1, ""), by="root") == []


def folded(world: World, *entry_facts: facts.Fact, **changes: Any) -> list[str]:
    made, _ = world.entry(*entry_facts, **changes)
    return Watcher().fold(world.cluster, made)


def test_time_does_not_go_back(world: World) -> None:
    world.now_ms -= 1
    at_ms = world.now_ms
    assert folded(world) == [
        f"C: entry {world.cluster.offset} is at {at_ms}, the one before at {at_ms + 1}"
    ]


@pytest.mark.parametrize(
    ("term", "opens", "told"),
    [
        (2, (), ["C: entry {} of term 2 opens [] after 1"]),
        (2, (3,), ["C: entry {} of term 2 opens [3] after 1"]),
        (1, (1,), ["C: entry {} of term 1 opens [1] after 1"]),
        (2, (2,), []),
        (1, (), []),
    ],
    ids=["unopened", "as another", "again", "opened", "going on"],
)
def test_a_term_begins_by_being_opened_once(
    world: World, term: int, opens: tuple[int, ...], told: list[str]
) -> None:
    made = [facts.TermOpened(each, "leader-2", "n", 1) for each in opens]
    found = folded(world, *made, term=term)
    assert found == [line.format(world.cluster.offset) for line in told]


def test_no_input_is_left_out_or_decided_twice(world: World) -> None:
    def decided(first: int, then: int, *entry_facts: facts.Fact) -> list[str]:
        return folded(world, *entry_facts, consumed=(Position("requests", 0, first, then),))

    assert decided(4, 6) == []  # Where a reader begins is not ours to say.
    assert decided(6, 8) == []
    assert len(decided(7, 9)) == 1
    assert len(decided(10, 12)) == 1
    assert len(decided(12, 12)) == 1
    gap = facts.InputGapAccepted("requests", 0, 12, 20, "retention")
    assert decided(20, 21, gap) == []


def test_ranges_of_one_input_in_one_entry_follow_each_other(world: World) -> None:
    twice = (Position("requests", 0, 0, 2), Position("requests", 0, 1, 3))
    assert len(folded(world, consumed=twice)) == 1
    in_a_row = (Position("requests", 0, 3, 5), Position("requests", 0, 5, 6))
    assert folded(world, consumed=in_a_row) == []


def test_a_void_entry_breaks_nothing_whatever_it_says(world: World) -> None:
    entry, _ = world.entry(facts.NodeLost(N1, 1, ""), prev=bytes(32))
    voided = world.cluster.voided
    assert Watcher().fold(world.cluster, entry) == []
    assert world.cluster.voided == voided + 1


def test_limits_of_queues_above_count_too() -> None:
    world = ready()
    world.queue(QueueId("team"), "default")
    world.record(facts.QueueApplied(DEFAULT, "", 0, -1, -1))
    world.admit("j", spec(queue=QueueId("team")))
    told = ["H: job j takes queue default over 0 devices"]
    assert see(world, placed("j", 1, [("n1", [0])])) == told
