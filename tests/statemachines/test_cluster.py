"""The fold, fact by fact: what each changes across entities, and what it refuses to believe."""

from __future__ import annotations

from typing import Any, Final, get_args

import pytest
from msgspec.structs import replace

from statemachines import cluster as clusters
from statemachines import facts
from statemachines.attempt import AttemptState
from statemachines.checkpoint import CheckpointState
from statemachines.cluster import ANSWER_WINDOW_MS, ATTEMPTS_KEPT, Answer, Cluster
from statemachines.device import DeviceState
from statemachines.entry import Position, Recorded
from statemachines.job import JobState
from statemachines.lifecycle import IllegalTransition
from statemachines.nic import NicState
from statemachines.node import NodeState
from statemachines.policy import DEFAULT_POLICY
from statemachines.queue import Queue
from statemachines.run import RunState
from statemachines.values import (
    Cause,
    Evidence,
    JobId,
    JobNext,
    NodeId,
    Outcome,
    QueueId,
    Reason,
    RunId,
)
from tests.statemachines.tour import saved, tour
from tests.statemachines.world import DEFAULT, START_MS, World, inventory, placed, ready, spec

J: Final = JobId("j")
N1: Final = NodeId("n1")
N2: Final = NodeId("n2")
R: Final = RunId("j.1.0")


def ended(run: str, evidence: Evidence = Evidence.EXIT_STATUS, code: int = 0) -> facts.RunEnded:
    return facts.RunEnded(RunId(run), code, 0, evidence, "")


def done(attempt: int, then: JobNext = JobNext.SUCCEEDED) -> facts.AttemptEnded:
    return facts.AttemptEnded(J, attempt, Outcome.STOPPED, Cause.PROGRAM_EXITED, "", then, 0)


@pytest.fixture
def world() -> World:
    """A leader, a queue, two nodes and one job that waits."""
    world = ready()
    world.admit("j")
    return world


@pytest.fixture
def running() -> World:
    """The same with the job running on device 2 of n1."""
    world = ready()
    world.admit("j")
    world.start("j", 1, [("n1", [2])])
    return world


def test_the_tour_holds_every_fact_there_is_and_each_has_its_handler() -> None:
    told = {type(recorded.fact) for entry in tour().entries for recorded in entry.facts}
    assert told == set(get_args(facts.Fact)) == set(clusters._HANDLERS)


# --- what was touched


def values(cluster: Cluster) -> tuple[dict[Any, Any], ...]:
    jobs: dict[Any, Any] = {
        name: (job, cluster.attempts.get(name), cluster.checkpoints.get(name))
        for name, job in cluster.jobs.items()
    }
    nodes: dict[Any, Any] = {
        name: (node, tuple(cluster.runs[run] for run in cluster.usage[name].runs))
        for name, node in cluster.nodes.items()
    }
    return jobs, nodes, dict(cluster.queues)


def test_whatever_changes_is_touched() -> None:
    cluster = Cluster("test", track=True)
    for entry in tour().entries:
        for recorded in entry.facts:
            before = values(cluster)
            cluster.apply(recorded, entry.at_ms)
            touched = cluster.take_touched()
            marked: tuple[dict[Any, None], ...] = (touched.jobs, touched.nodes, touched.queues)
            for was, now, ids in zip(before, values(cluster), marked, strict=True):
                changed = {
                    name for name in was.keys() | now.keys() if was.get(name) != now.get(name)
                }
                assert changed <= ids.keys(), recorded
        cluster.seal(entry)


def test_nodes_of_a_stopping_attempt_are_touched_for_their_orders_change(running: World) -> None:
    running.cluster.take_touched()
    running.record(facts.AttemptStopping(J, 1, Cause.HUNG, "", JobNext.QUEUED, 0))
    assert list(running.cluster.take_touched().nodes) == [N1]


def test_a_cluster_that_does_not_track_has_nothing_to_take() -> None:
    with pytest.raises(AssertionError, match="track=True"):
        Cluster("test").take_touched()


# --- the cell


def test_a_term_names_its_leader(world: World) -> None:
    world.open_term("leader-2")
    assert (world.cluster.leader, world.cluster.term) == ("leader-2", 2)
    assert world.cluster.term_opened_at_ms == world.now_ms


def test_an_older_binary_does_not_follow_a_newer_fold(world: World) -> None:
    newer = facts.TermOpened(2, "leader-2", "n", clusters.FOLD_VERSION + 1)
    with pytest.raises(IllegalTransition, match="older than the log's"):
        world.cluster.apply(Recorded(newer), world.now_ms)


def test_policy_and_incidents_are_state(world: World) -> None:
    policy = replace(DEFAULT_POLICY, grace_ms=1)
    opened = facts.BreakerOpened("i1", "all silent", 2)
    world.record(policy, opened)
    assert (world.cluster.policy, world.cluster.incident) == (policy, opened)
    world.record(facts.BreakerClosed("i1"))
    assert world.cluster.incident is None


def test_parked_inputs_are_counted_and_gaps_move_the_position(world: World) -> None:
    world.record(facts.InputParked("requests", 0, 4, "not a request", b"?"))
    world.record(facts.InputGapAccepted("reports", 1, 5, 9, "retention"))
    assert world.cluster.parked == 1
    assert world.cluster.positions == {("reports", 1): 9}


def test_positions_are_those_after_the_entry(world: World) -> None:
    world.record(consumed=(Position("requests", 0, 0, 3), Position("reports", 1, 0, 2)))
    world.record(consumed=(Position("requests", 0, 3, 7),))
    assert world.cluster.positions == {("requests", 0): 7, ("reports", 1): 2}


# --- answers


def test_a_request_is_answered_and_the_answer_kept_for_the_window(world: World) -> None:
    at_ms = world.now_ms
    refused = facts.RequestRefused(
        "ann/2", b"e", "SubmitJob", "", "unknown_queue", "queue", "make it"
    )
    world.record(facts.RequestAccepted("ann/1", b"d", "HoldJob", "j"), refused)
    assert list(world.cluster.answers.items()) == [
        ("ann/j", Answer(b"digest", "SubmitJob", "j", "", "", "", at_ms)),
        ("ann/1", Answer(b"d", "HoldJob", "j", "", "", "", world.now_ms)),
        ("ann/2", Answer(b"e", "SubmitJob", "", "unknown_queue", "queue", "make it", world.now_ms)),
    ]
    world.now_ms = at_ms + ANSWER_WINDOW_MS - 1_000
    world.record()
    assert list(world.cluster.answers) == ["ann/j", "ann/1", "ann/2"]
    world.record()
    assert list(world.cluster.answers) == ["ann/1", "ann/2"]
    world.record()
    assert not world.cluster.answers


def test_a_later_answer_to_one_request_outlives_those_between(world: World) -> None:
    for request in ("a", "b", "a"):
        world.record(facts.RequestAccepted(request, b"", "HoldJob", "j"))
    assert list(world.cluster.answers) == ["ann/j", "b", "a"]


def test_answers_have_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "ANSWERS_KEPT", 2)
    world.record(*[facts.RequestAccepted(f"r{i}", b"", "HoldJob", "j") for i in range(5)])
    assert list(world.cluster.answers) == ["r3", "r4"]


# --- queues


def test_a_queue_counts_for_itself_and_for_those_above() -> None:
    world = ready()
    team, lab = QueueId("team"), QueueId("lab")
    world.queue(team, "default")
    world.queue(lab, "team", devices=4)
    world.admit("j", spec(2, queue=lab))
    world.admit("k", spec(queue=team))
    world.start("j", 1, [("n1", [0]), ("n2", [0])])
    assert world.cluster.queue_line(lab) == [
        Queue(lab, "team", 4, -1, -1),
        Queue(team, "default", -1, -1, -1),
        Queue(DEFAULT, "", -1, -1, -1),
    ]
    seen = {
        name: (usage.devices, usage.cpu_milli, usage.jobs, usage.waiting, usage.live, usage.held)
        for name, usage in world.cluster.queue_usage.items()
    }
    assert seen == {
        lab: (2, 8_000, 1, 0, 1, 0),
        team: (2, 8_000, 2, 1, 1, 0),
        DEFAULT: (2, 8_000, 2, 1, 1, 0),
    }


def test_new_limits_keep_what_is_held(running: World) -> None:
    usage = running.cluster.queue_usage[DEFAULT]
    running.queue(devices=0)
    assert running.cluster.queues[DEFAULT].device_limit == 0
    assert running.cluster.queue_usage[DEFAULT] is usage
    assert usage.devices == 1


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        (facts.QueueApplied(DEFAULT, "other", -1, -1, -1), "cannot change its parent"),
        (facts.QueueApplied(QueueId("x"), "nowhere", -1, -1, -1), "no parent nowhere"),
        (facts.QueueRemoved(DEFAULT), "still has jobs"),
    ],
    ids=["moved", "without its parent", "with jobs"],
)
def test_a_queue_cannot_be(world: World, fact: facts.Fact, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        world.cluster.apply(Recorded(fact), world.now_ms)


def test_a_queue_with_queues_below_it_stays() -> None:
    world = ready()
    world.queue(QueueId("team"), "default")
    with pytest.raises(AssertionError, match="still has queues below it"):
        world.cluster.apply(Recorded(facts.QueueRemoved(DEFAULT)), world.now_ms)
    world.record(facts.QueueRemoved(QueueId("team")), facts.QueueRemoved(DEFAULT))
    assert not world.cluster.queues
    assert not world.cluster.queue_usage


def test_the_line_of_an_unknown_queue_is_an_error(world: World) -> None:
    with pytest.raises(AssertionError, match="its line is broken at 'nowhere'"):
        world.cluster.queue_line(QueueId("nowhere"))


# --- jobs


def test_an_array_is_many_jobs_with_numbers_in_a_row(world: World) -> None:
    world.admit("arr", count=3)
    names = ["arr_0", "arr_1", "arr_2"]
    assert list(world.cluster.jobs) == ["j", *names]
    assert [world.cluster.jobs[JobId(name)].number for name in names] == [2, 3, 4]
    assert world.cluster.next_number == 5
    fourth = world.cluster.job_at(4)
    assert fourth is not None
    assert fourth.id == "arr_2"
    assert world.cluster.job_at(5) is None
    assert world.cluster.answers["ann/arr"].target == "arr"
    assert world.cluster.queue_usage[DEFAULT].waiting == 4


def test_an_array_of_one_has_an_element(world: World) -> None:
    world.admit("arr", count=1)
    assert list(world.cluster.jobs) == ["j", "arr_0"]


@pytest.mark.parametrize(("name", "number"), [("k", 1), ("k", 3), ("j", 2)])
def test_a_job_is_new_and_has_the_next_number(world: World, name: str, number: int) -> None:
    fact = facts.JobAdmitted(JobId(name), number, 0, spec(), "ann/x", b"")
    with pytest.raises(AssertionError, match=r"number|exists already"):
        world.cluster.apply(Recorded(fact), world.now_ms)


def test_a_fact_about_something_unknown_says_so(world: World) -> None:
    for fact in (
        facts.JobReleased(JobId("nobody")),
        facts.DeviceRecovered(N1, 99),
        facts.NicRecovered(N1, "eth9"),
    ):
        with pytest.raises(IllegalTransition, match="nothing that this cell knows"):
            world.cluster.apply(Recorded(fact), world.now_ms)
        with pytest.raises(IllegalTransition, match="nothing that this cell knows"):
            world.cluster.fold(world.entry(fact)[0])


def test_a_retired_job_leaves_nothing_behind(running: World) -> None:
    running.record(saved(J, 1, 10), ended(R), done(1))
    running.record(facts.JobRetired(J))
    cluster = running.cluster
    assert (cluster.jobs, cluster.attempts, cluster.runs, cluster.checkpoints) == ({}, {}, {}, {})
    assert cluster.job_numbers == {}
    assert cluster.queue_usage[DEFAULT].jobs == 0
    assert list(cluster.answers) == ["ann/j"]  # The request was answered all the same.


def test_only_an_ended_job_retires(running: World) -> None:
    with pytest.raises(IllegalTransition, match="JobRetired"):
        running.cluster.apply(Recorded(facts.JobRetired(J)), running.now_ms)


def test_a_job_with_lost_runs_that_may_live_does_not_retire() -> None:
    world = ready()
    world.admit("j", spec(overlap_safe=True))
    world.start("j", 1, [("n1", [0])])
    world.record(facts.NodeLost(N1, 1, ""), done(1, JobNext.CANCELLED))
    with pytest.raises(AssertionError, match="open runs"):
        world.cluster.apply(Recorded(facts.JobRetired(J)), world.now_ms)


# --- attempts and runs


def test_a_placement_takes_what_it_grants_until_the_run_has_ended(running: World) -> None:
    cluster, usage = running.cluster, running.cluster.usage[N1]
    assert (usage.holders, usage.cpu_milli, usage.memory_mib, list(usage.runs)) == (
        {2: R},
        4_000,
        1_024,
        [R],
    )
    running.record(facts.NodeLost(N1, 1, "silent"))
    assert usage.holders == {2: R}  # Lost is not dead.
    running.record(ended(R, Evidence.FENCE_CONFIRMED))
    assert (usage.holders, usage.cpu_milli, usage.memory_mib, list(usage.runs)) == ({}, 0, 0, [])
    assert cluster.queue_usage[DEFAULT].devices == 1  # Charged until the attempt ends.
    running.record(done(1, JobNext.QUEUED))
    assert cluster.queue_usage[DEFAULT].devices == 0
    assert cluster.queue_usage[DEFAULT].cpu_milli == 0


@pytest.mark.parametrize("devices", [[2], [0, 0]], ids=["held by another", "twice"])
def test_a_device_is_granted_once(running: World, devices: list[int]) -> None:
    running.admit("k")
    with pytest.raises(AssertionError, match=f"device {devices[0]} of n1 is held by"):
        running.cluster.apply(Recorded(placed("k", 1, [("n1", devices)])), running.now_ms)


def test_a_run_has_a_name_of_its_own(running: World) -> None:
    running.admit("k")
    gang = placed("k", 1, [("n2", [0])])
    stolen = replace(gang, placements=(replace(gang.placements[0], run=R),))
    with pytest.raises(AssertionError, match=r"run j\.1\.0 exists already"):
        running.cluster.apply(Recorded(stolen), running.now_ms)


def test_an_attempt_counts_its_runs() -> None:
    world = ready()
    world.admit("j", spec(3))
    world.record(placed("j", 1, [("n1", [0]), ("n1", [1]), ("n2", [0])]))
    world.record(facts.RunStarted(R), facts.RunStarted(RunId("j.1.2")))
    world.record(ended("j.1.2", code=1), facts.NodeLost(N1, 1, ""))
    attempt = world.cluster.attempt(J)
    assert attempt is not None
    assert (attempt.started, attempt.open, attempt.lost) == (2, 2, 2)
    world.record(ended("j.1.1", Evidence.NEVER_STARTED))
    attempt = world.cluster.find_attempt(J, 1)
    assert attempt is not None
    assert (attempt.started, attempt.open, attempt.lost) == (2, 1, 1)


def test_an_attempt_that_must_not_overlap_ends_only_when_all_runs_have(running: World) -> None:
    running.record(facts.NodeLost(N1, 1, "silent"))
    with pytest.raises(AssertionError, match="runs left and not overlap-safe"):
        running.cluster.apply(Recorded(done(1, JobNext.QUEUED)), running.now_ms)


def test_an_overlap_safe_job_goes_on_while_the_lost_run_may_live() -> None:
    world = ready()
    world.admit("j", spec(overlap_safe=True))
    world.start("j", 1, [("n1", [0])])
    world.record(facts.NodeLost(N1, 1, ""))
    world.cluster.take_touched()
    world.record(done(1, JobNext.QUEUED))
    assert list(world.cluster.take_touched().nodes) == [N1]
    world.start("j", 2, [("n2", [0])])
    world.record(ended(R, Evidence.FENCE_CONFIRMED))
    first, second = world.cluster.attempts[J]
    assert (first.state, first.open, first.lost) == (AttemptState.ENDED, 0, 0)
    assert (second.state, second.open) == (AttemptState.RUNNING, 1)
    assert world.cluster.runs[R].state is RunState.ENDED


def test_a_node_lost_again_counts_its_lost_runs_once() -> None:
    world = ready()
    world.admit("j", spec(overlap_safe=True))
    world.start("j", 1, [("n1", [0])])
    world.record(facts.NodeLost(N1, 1, ""))
    world.record(facts.NodeJoined(N1, 2, inventory()), facts.NodeLost(N1, 2, ""))
    attempt = world.cluster.attempt(J)
    assert attempt is not None
    assert (attempt.open, attempt.lost) == (1, 1)
    assert world.cluster.nodes[N1].state is NodeState.LOST


def test_facts_of_an_earlier_attempt_are_illegal(running: World) -> None:
    running.record(ended(R), done(1, JobNext.QUEUED))
    running.start("j", 2, [("n1", [0])])
    for fact in (
        facts.AttemptStopping(J, 1, Cause.HUNG, "", JobNext.QUEUED, 0),
        done(1),
        facts.TrainingFinished(J, 1, 5),
        facts.CheckpointStarted(J, 1, 5),
        saved(J, 1, 5),
    ):
        with pytest.raises(AssertionError):
            running.cluster.apply(Recorded(fact), running.now_ms)


def test_old_attempts_make_room_but_not_those_whose_runs_may_live() -> None:
    world = ready()
    world.admit("j", spec(overlap_safe=True))
    world.start("j", 1, [("n1", [0])])
    world.record(facts.NodeLost(N1, 1, ""), done(1, JobNext.QUEUED))
    for attempt in range(2, ATTEMPTS_KEPT + 2):
        world.start("j", attempt, [("n2", [0])])
        world.record(ended(f"j.{attempt}.0"), done(attempt, JobNext.QUEUED))
    assert [each.number for each in world.cluster.attempts[J]] == list(range(1, ATTEMPTS_KEPT + 2))
    world.record(ended(R, Evidence.OPERATOR_SAID))
    world.start("j", ATTEMPTS_KEPT + 2, [("n2", [0])])
    assert [each.number for each in world.cluster.attempts[J]] == list(range(2, ATTEMPTS_KEPT + 3))
    assert R not in world.cluster.runs
    assert world.cluster.find_attempt(J, 1) is None


def test_a_run_whose_attempt_is_not_kept_is_a_bug(running: World) -> None:
    running.cluster.attempts[J] = (replace(running.cluster.attempts[J][0], number=2),)
    with pytest.raises(AssertionError, match="its attempt is gone"):
        running.cluster.apply(Recorded(ended(R)), running.now_ms)


def test_what_the_trainer_says_is_kept_with_its_attempt(running: World) -> None:
    running.record(facts.SaveAsked(J, 1, 1, 9_000, Cause.DRAINED, JobNext.QUEUED))
    running.record(facts.SaveAcknowledged(J, 1, 1, 70), facts.TrainingFinished(J, 1, 80))
    attempt = running.cluster.attempt(J)
    assert attempt is not None
    assert (attempt.ask, attempt.ask_step, attempt.finished_step) == (1, 70, 80)


def test_a_job_without_attempts_has_none(world: World) -> None:
    assert world.cluster.attempt(J) is None
    assert world.cluster.find_attempt(J, 1) is None


# --- checkpoints


def test_a_durable_checkpoint_is_the_restart_point_until_it_is_condemned(running: World) -> None:
    cluster = running.cluster
    running.record(saved(J, 1, 10), facts.CheckpointStarted(J, 1, 20), saved(J, 1, 20))
    assert cluster.jobs[J].durable_step == 20
    newest = cluster.newest_durable(J)
    assert newest is not None
    assert newest.step == 20
    running.record(facts.CheckpointCondemned(J, 20, "short"))
    assert cluster.jobs[J].durable_step == 10
    running.record(facts.CheckpointRemoved(J, 10))
    assert cluster.jobs[J].durable_step == -1
    assert cluster.newest_durable(J) is None


def test_a_release_of_an_older_one_leaves_the_restart_point(running: World) -> None:
    running.record(saved(J, 1, 10), saved(J, 1, 20), facts.CheckpointReleased(J, 10))
    assert running.cluster.jobs[J].durable_step == 20
    kept = running.cluster.find_checkpoint(J, 10)
    assert kept is not None
    assert kept.state is CheckpointState.RELEASED


def test_a_save_never_hides_a_durable_checkpoint_of_its_step(running: World) -> None:
    running.record(saved(J, 1, 10))
    with pytest.raises(IllegalTransition, match="CheckpointStarted"):
        running.cluster.apply(Recorded(facts.CheckpointStarted(J, 1, 10)), running.now_ms)


def test_a_failed_save_can_be_tried_again(running: World) -> None:
    running.record(facts.CheckpointStarted(J, 1, 10), facts.CheckpointFailed(J, 1, 10, "full"))
    running.record(facts.CheckpointStarted(J, 1, 10), saved(J, 1, 10))
    assert running.cluster.jobs[J].durable_step == 10


def test_a_checkpoint_that_nobody_knows_is_a_bug(running: World) -> None:
    with pytest.raises(AssertionError, match="no checkpoint of step 5"):
        running.cluster.apply(Recorded(facts.CheckpointReleased(J, 5)), running.now_ms)


# --- nodes, devices, nics


def test_a_node_can_be_removed_only_when_it_holds_nothing(running: World) -> None:
    with pytest.raises(AssertionError, match="still holds runs"):
        running.cluster.apply(Recorded(facts.NodeRemoved(N1)), running.now_ms)
    running.record(facts.NodeRemoved(N2))
    assert list(running.cluster.nodes) == list(running.cluster.usage) == [N1]


def test_a_node_that_joins_again_keeps_what_it_holds(running: World) -> None:
    running.record(facts.NodeJoined(N1, 1, inventory(8)))
    assert running.cluster.usage[N1].holders == {2: R}
    assert len(running.cluster.nodes[N1].devices) == 8


def test_facts_about_parts_change_that_part_alone(world: World) -> None:
    why = Reason("xid_79", "fell off the bus")
    world.record(facts.DeviceFaulted(N1, 1, why), facts.NicDegraded(N1, "ib1", why))
    node = world.cluster.nodes[N1]
    states = [DeviceState.HEALTHY, DeviceState.FAULTY, DeviceState.HEALTHY, DeviceState.HEALTHY]
    assert [device.state for device in node.devices] == states
    assert [nic.state for nic in node.nics] == [NicState.HEALTHY, NicState.DEGRADED]
    world.record(facts.DeviceRecovered(N1, 1), facts.NicRecovered(N1, "ib1"))
    assert world.cluster.nodes[N1] == node.__class__(
        *[getattr(ready().cluster.nodes[N1], field) for field in node.__struct_fields__]
    )


def test_admission_time_is_the_entrys(world: World) -> None:
    job = world.cluster.jobs[J]
    assert (job.admitted_at_ms, job.by, job.state) == (world.now_ms, "ann", JobState.QUEUED)
    assert world.cluster.at_ms == world.now_ms > START_MS
