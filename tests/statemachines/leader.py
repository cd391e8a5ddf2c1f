"""A small leader that decides at random, but only what is legal. Whoever draws decides what chance is.

One action is one function: it looks at the cluster, draws, and answers the facts of one step, or none when nothing of
its kind can be done now. Hypothesis draws in the stateful test, a seeded generator in the golden logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from statemachines import attempt, checkpoint, facts, job, node
from statemachines.attempt import Attempt
from statemachines.checkpoint import Checkpoint, CheckpointState
from statemachines.cluster import Cluster
from statemachines.device import LIFECYCLE as DEVICE
from statemachines.job import LIVE, Job, JobState
from statemachines.nic import LIFECYCLE as NIC
from statemachines.node import Node, NodeState
from statemachines.run import Run, RunState
from statemachines.values import (
    Cause,
    Evidence,
    Grant,
    JobId,
    JobNext,
    JobSpec,
    NodeId,
    Outcome,
    Placement,
    QueueId,
    Reach,
    Reason,
    Resources,
    ResumePoint,
    Role,
    RunId,
    Tier,
)
from tests.statemachines.world import inventory

T = TypeVar("T")
Facts: TypeAlias = Sequence[facts.Fact]
WHY: Final = Reason("chance", "the dice said so")
QUEUES: Final = ("default", "team", "lab")
ROOM_MS: Final = 30_000


class Chance(Protocol):
    """Where choices come from."""

    def pick(self, among: Sequence[T]) -> T:
        """One of them; never called with none."""

    def number(self, least: int, most: int) -> int:
        """A whole number between them, both included."""


def apply_queue(cluster: Cluster, chance: Chance) -> Facts:
    name = chance.pick(QUEUES)
    at = QUEUES.index(name)
    parent = QUEUES[at - 1] if at else ""
    if parent and QueueId(parent) not in cluster.queues:
        return []
    return [facts.QueueApplied(QueueId(name), parent, chance.pick((-1, 2, 8)), -1, -1)]


def remove_queue(cluster: Cluster, chance: Chance) -> Facts:
    parents = {queue.parent for queue in cluster.queues.values()}
    empty = [q for q in cluster.queues if q not in parents and not cluster.queue_usage[q].jobs]
    return [facts.QueueRemoved(chance.pick(empty))] if empty else []


def admit(cluster: Cluster, chance: Chance) -> Facts:
    if not cluster.queues:
        return []
    number = cluster.next_number
    role = Role("w", chance.number(1, 3), Resources(4_000, 1_024, chance.number(0, 2)))
    spec = JobSpec(
        "job", chance.pick(list(cluster.queues)), chance.number(0, 9), (role,),
        overlap_safe=chance.pick((False, True)), held=chance.number(0, 4) == 0,
    )  # fmt: skip
    name = JobId(f"j{number}")
    count = chance.pick((0, 0, 0, 1, 2))
    return [facts.JobAdmitted(name, number, count, spec, f"ann/{number}", b"digest")]


def answer(cluster: Cluster, chance: Chance) -> Facts:
    request = f"bob/{chance.number(0, 5)}"
    if chance.pick((True, False)):
        return [facts.RequestAccepted(request, b"d", "HoldJob", "j1")]
    return [facts.RequestRefused(request, b"d", "HoldJob", "j1", "bad_state", "", "it has ended")]


def move_job(cluster: Cluster, chance: Chance) -> Facts:
    """Any fact about a job alone that its lifecycle allows."""
    moves: dict[type, Callable[[JobId], facts.Fact]] = {
        facts.JobWaiting: lambda name: facts.JobWaiting(name, WHY),
        facts.JobHeld: lambda name: facts.JobHeld(name, WHY),
        facts.JobReleased: facts.JobReleased,
        facts.JobRequeued: lambda name: facts.JobRequeued(name, cluster.at_ms),
        facts.JobCancelled: lambda name: facts.JobCancelled(name, "no more"),
    }
    legal = [
        (name, kind)
        for name, each in cluster.jobs.items()
        for kind in moves
        if (each.state, kind) in job.LIFECYCLE
    ]
    if not legal:
        return []
    name, kind = chance.pick(legal)
    return [moves[kind](name)]


def retire(cluster: Cluster, chance: Chance) -> Facts:
    gone = [
        name
        for name, each in cluster.jobs.items()
        if each.state in job.ENDED and all(a.open == 0 for a in cluster.attempts.get(name, ()))
    ]
    return [facts.JobRetired(chance.pick(gone))] if gone else []


def place(cluster: Cluster, chance: Chance) -> Facts:
    """First fit on open nodes, as whole as the plan would."""
    waiting = [
        each
        for each in cluster.jobs.values()
        if each.state is JobState.QUEUED
        and each.not_before_ms <= cluster.at_ms
        and within_limits(cluster, each)
    ]
    if not waiting:
        return []
    wanted = chance.pick(waiting)
    placements = first_fit(cluster, wanted)
    if len(placements) < wanted.spec.members:
        return []
    number = wanted.attempt + 1
    return [
        facts.GangPlaced(wanted.id, number, placements, restart_point(cluster, wanted), 20_000, WHY)
    ]


def within_limits(cluster: Cluster, wanted: Job) -> bool:
    return all(
        queue.device_limit < 0
        or cluster.queue_usage[queue.id].devices + wanted.spec.devices <= queue.device_limit
        for queue in cluster.queue_line(wanted.spec.queue)
    )


def first_fit(cluster: Cluster, wanted: Job) -> tuple[Placement, ...]:
    (role,) = wanted.spec.roles
    need = role.resources
    placements: list[Placement] = []
    for each in cluster.nodes.values():
        usage = cluster.usage[each.id]
        free = [
            device.spec.index
            for device in each.devices
            if device.state != "faulty" and device.spec.index not in usage.holders
        ]
        cpu_milli = each.inventory.cpu_milli - usage.cpu_milli
        memory_mib = each.inventory.memory_mib - usage.memory_mib
        while (
            each.open
            and len(placements) < role.count
            and len(free) >= need.devices
            and cpu_milli >= need.cpu_milli
            and memory_mib >= need.memory_mib
        ):
            rank = len(placements)
            grants, free = free[: need.devices], free[need.devices :]
            cpu_milli -= need.cpu_milli
            memory_mib -= need.memory_mib
            run = RunId(f"{wanted.id}.{wanted.attempt + 1}.{rank}")
            placements.append(
                Placement(
                    run, each.id, rank, role.name, tuple([Grant(index, 1000) for index in grants]),
                    need.cpu_milli, need.memory_mib,
                )
            )  # fmt: skip
    return tuple(placements)


def restart_point(cluster: Cluster, wanted: Job) -> ResumePoint:
    newest = cluster.newest_durable(wanted.id)
    if newest is None:
        return ResumePoint()
    return ResumePoint(newest.step, newest.uri, newest.manifest, newest.attempt)


def open_runs(cluster: Cluster) -> list[Run]:
    return [run for run in cluster.runs.values() if run.state is not RunState.ENDED]


def live_attempts(cluster: Cluster) -> list[Attempt]:
    live = [cluster.attempt(name) for name, each in cluster.jobs.items() if each.state in LIVE]
    return [each for each in live if each is not None]


def start_run(cluster: Cluster, chance: Chance) -> Facts:
    """A run starts; the last one starts the attempt."""
    placed = [
        run
        for run in open_runs(cluster)
        if run.state is RunState.PLACED and (now := cluster.find_attempt(run.job, run.attempt))
        and (now.state, facts.RunStarted) in attempt.LIFECYCLE
    ]  # fmt: skip
    if not placed:
        return []
    run = chance.pick(placed)
    now = cluster.find_attempt(run.job, run.attempt)
    assert now is not None
    started: list[facts.Fact] = [facts.RunStarted(run.id)]
    if now.started + 1 == len(now.runs) and now.state == "starting":
        started.append(facts.AttemptStarted(run.job, run.attempt))
    return started


def end_run(cluster: Cluster, chance: Chance) -> Facts:
    left = open_runs(cluster)
    if not left:
        return []
    run = chance.pick(left)
    # A fence that no agent reported has its own rule, which the watcher holds.
    known = [each for each in Evidence if each is not Evidence.SELF_FENCED]
    return [facts.RunEnded(run.id, chance.pick((0, 1, 143)), 0, chance.pick(known), "")]


def end_attempt(cluster: Cluster, chance: Chance) -> Facts:
    over = [
        each
        for each in live_attempts(cluster)
        if each.open == 0 or (each.open == each.lost and cluster.jobs[each.job].spec.overlap_safe)
    ]
    if not over:
        return []
    ended = chance.pick(over)
    then, cause = chance.pick(list(JobNext)), chance.pick(list(Cause))
    outcome = Outcome.LOST if ended.open else chance.pick(list(Outcome))
    not_before_ms = cluster.at_ms + chance.pick((0, ROOM_MS))
    return [facts.AttemptEnded(ended.job, ended.number, outcome, cause, "", then, not_before_ms)]


def tell_attempt(cluster: Cluster, chance: Chance) -> Facts:
    """Any fact about a live attempt alone that its lifecycle allows."""

    def ask(a: Attempt) -> facts.Fact:
        return facts.SaveAsked(a.job, a.number, a.ask + 1, 0, Cause.DRAINED, JobNext.QUEUED)

    def stop(a: Attempt) -> facts.Fact:
        then = chance.pick(list(JobNext))
        return facts.AttemptStopping(a.job, a.number, Cause.REQUEUED, "", then, cluster.at_ms)

    tellings: dict[type, Callable[[Attempt], facts.Fact]] = {
        facts.SaveAsked: ask,
        facts.SaveAcknowledged: lambda a: facts.SaveAcknowledged(a.job, a.number, a.ask, 7),
        facts.TrainingFinished: lambda a: facts.TrainingFinished(a.job, a.number, 9),
        facts.AttemptResumed: lambda a: facts.AttemptResumed(a.job, a.number, a.resume.step),
        facts.ResumeMismatched: lambda a: facts.ResumeMismatched(a.job, a.number, 1, "x", ""),
        facts.AttemptStopping: stop,
    }
    legal = [
        (each, kind)
        for each in live_attempts(cluster)
        for kind in tellings
        if (each.state, kind) in attempt.LIFECYCLE
        and (kind is not facts.SaveAcknowledged or (each.ask > 0 and each.ask_step == 0))
    ]
    if not legal:
        return []
    told, kind = chance.pick(legal)
    return [tellings[kind](told)]


def begin_save(cluster: Cluster, chance: Chance) -> Facts:
    live = live_attempts(cluster)
    if not live:
        return []
    saving = chance.pick(live)
    step = cluster.jobs[saving.job].durable_step + chance.number(1, 3)
    known = cluster.find_checkpoint(saving.job, step)
    if known and (known.state, facts.CheckpointStarted) not in checkpoint.LIFECYCLE:
        return []
    return [facts.CheckpointStarted(saving.job, saving.number, step)]


def save(cluster: Cluster, chance: Chance) -> Facts:
    live = live_attempts(cluster)
    if not live:
        return []
    saving = chance.pick(live)
    step = cluster.jobs[saving.job].durable_step + chance.number(1, 3)
    reach = chance.pick(list(Reach))
    return [
        facts.CheckpointSaved(
            saving.job, saving.number, step, f"file:///{saving.number}/{step}", 1, Tier.REMOTE,
            reach, 1, 1, "m", True, False, "",
        )
    ]  # fmt: skip


def settle_checkpoint(cluster: Cluster, chance: Chance) -> Facts:
    """Any fact about a known checkpoint that its lifecycle allows, but the restart point is not released."""
    ends: dict[type, Callable[[Checkpoint], facts.Fact]] = {
        facts.CheckpointFailed: lambda c: facts.CheckpointFailed(c.job, c.attempt, c.step, ""),
        facts.CheckpointReleased: lambda c: facts.CheckpointReleased(c.job, c.step),
        facts.CheckpointRemoved: lambda c: facts.CheckpointRemoved(c.job, c.step),
        facts.CheckpointCondemned: lambda c: facts.CheckpointCondemned(c.job, c.step, "bad"),
    }
    legal = [
        (each, kind)
        for kept in cluster.checkpoints.values()
        for each in kept
        for kind in ends
        if (each.state, kind) in checkpoint.LIFECYCLE
        and not (kind is facts.CheckpointReleased and newest(cluster, each))
    ]
    if not legal:
        return []
    known, kind = chance.pick(legal)
    return [ends[kind](known)]


def newest(cluster: Cluster, known: Checkpoint) -> bool:
    durable = known.state is CheckpointState.DURABLE
    return durable and known.step == cluster.jobs[known.job].durable_step


def join(cluster: Cluster, chance: Chance) -> Facts:
    name = NodeId(f"n{chance.number(1, 4)}")
    known = cluster.nodes.get(name)
    incarnation = 1
    if known is not None:
        incarnation = known.incarnation + (1 if known.state is NodeState.LOST else 0)
    return [facts.NodeJoined(name, incarnation, inventory(chance.number(2, 4)))]


def move_node(cluster: Cluster, chance: Chance) -> Facts:
    """Any fact about a node that its two lifecycles allow. A person gives nodes up, so no breaker is in the way."""
    moves: dict[type, Callable[[Node], facts.Fact]] = {
        facts.NodeSuspected: lambda n: facts.NodeSuspected(n.id, 6_000),
        facts.NodeRecovered: lambda n: facts.NodeRecovered(n.id),
        facts.NodeLost: lambda n: facts.NodeLost(n.id, n.incarnation, "silent"),
        facts.NodeCordoned: lambda n: facts.NodeCordoned(n.id, "fan"),
        facts.NodeUncordoned: lambda n: facts.NodeUncordoned(n.id),
        facts.NodeDrainStarted: lambda n: facts.NodeDrainStarted(n.id, cluster.at_ms, "kernel"),
        facts.NodeDrained: lambda n: facts.NodeDrained(n.id),
    }
    legal = [
        (each, kind)
        for each in cluster.nodes.values()
        for kind in moves
        if (each.state, kind) in node.LIVENESS or (each.service, kind) in node.SERVICE
    ]
    if not legal:
        return []
    known, kind = chance.pick(legal)
    return [moves[kind](known)]


def remove_node(cluster: Cluster, chance: Chance) -> Facts:
    empty = [name for name in cluster.nodes if not cluster.usage[name].runs]
    return [facts.NodeRemoved(chance.pick(empty))] if empty else []


def judge_part(cluster: Cluster, chance: Chance) -> Facts:
    """A device or NIC changes in any way that its lifecycle allows."""
    legal: list[facts.Fact] = []
    for each in cluster.nodes.values():
        for device in each.devices:
            at = (each.id, device.spec.index)
            changes = (
                facts.DeviceDegraded(*at, WHY),
                facts.DeviceFaulted(*at, WHY),
                facts.DeviceRecovered(*at),
            )
            legal += [fact for fact in changes if (device.state, type(fact)) in DEVICE]
        for nic in each.nics:
            on = (each.id, nic.spec.name)
            turns = (
                facts.NicDegraded(*on, WHY),
                facts.NicFaulted(*on, WHY),
                facts.NicRecovered(*on),
            )
            legal += [fact for fact in turns if (nic.state, type(fact)) in NIC]
    return [chance.pick(legal)] if legal else []


def weather(cluster: Cluster, chance: Chance) -> Facts:
    if cluster.incident:
        return [facts.BreakerClosed(cluster.incident.incident)]
    kinds: tuple[facts.Fact, ...] = (
        facts.BreakerOpened("i1", "all silent", 3),
        facts.InputParked("requests", 0, 1, "not a request", b"\xff"),
        facts.InputGapAccepted("requests", 0, 1, chance.number(2, 9), "retention"),
    )
    return [chance.pick(kinds)]


ACTIONS: Final[dict[str, Callable[[Cluster, Chance], Facts]]] = {
    each.__name__: each
    for each in (
        apply_queue, remove_queue, admit, answer, move_job, retire, place, start_run, end_run, end_attempt,
        tell_attempt, begin_save, save, settle_checkpoint, join, move_node, remove_node, judge_part, weather,
    )
}  # fmt: skip
