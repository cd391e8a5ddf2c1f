"""A history that holds every kind of fact at least once: what golden logs, snapshots and invariants are tried on."""

from __future__ import annotations

from typing import Final

from statemachines import facts
from statemachines.entry import Position
from statemachines.policy import DEFAULT_POLICY
from statemachines.values import (
    Cause,
    Evidence,
    JobId,
    JobNext,
    NodeId,
    Outcome,
    QueueId,
    Reach,
    Reason,
    ResumePoint,
    RunId,
    Tier,
)
from tests.statemachines.world import World, inventory, placed, spec

A: Final = JobId("a")
B: Final = JobId("b")
N1: Final = NodeId("n1")
N2: Final = NodeId("n2")
N3: Final = NodeId("n3")
TEAM: Final = QueueId("team")


def tour() -> World:
    """Tell the whole story."""
    world = World()
    _found(world)
    _submit(world)
    _train(world)
    _lose_a_node(world)
    _finish(world)
    _maintain(world)
    _leave(world)
    return world


def saved(job: JobId, attempt: int, step: int) -> facts.CheckpointSaved:
    """A durable checkpoint that can be loaded anywhere in the cell."""
    uri = f"file:///ckpt/{job}/{attempt}/{step}"
    return facts.CheckpointSaved(
        job, attempt, step, uri, 1 << 30, Tier.REMOTE, Reach.CELL, 900, 400, "cd" * 32, True, False, ""
    )  # fmt: skip


def _found(world: World) -> None:
    world.open_term()
    world.record(
        facts.PolicyApplied(*[getattr(DEFAULT_POLICY, f) for f in DEFAULT_POLICY.__struct_fields__])
    )
    world.queue()
    world.record(facts.QueueApplied(TEAM, "default", 8, 64_000, 100), by="root")
    world.node("n1")
    world.node("n2")
    world.node("n3")


def _submit(world: World) -> None:
    world.admit("a", spec(2, queue=TEAM))
    world.admit("b", spec(overlap_safe=True), count=3)
    world.record(
        facts.RequestAccepted("ann/hold", b"d1", "HoldJob", "b_2"),
        facts.JobHeld(JobId("b_2"), Reason("held", "by ann")),
        by="ann",
        consumed=(Position("requests", 0, 0, 3),),
    )
    world.record(
        facts.RequestRefused(
            "ann/x", b"d2", "SubmitJob", "", "unknown_queue", "queue", "no such queue"
        )
    )
    world.record(
        facts.InputParked("requests", 0, 3, "not a request", b"\xff\xfe"),
        consumed=(Position("requests", 0, 3, 4),),
    )
    world.record(facts.JobWaiting(A, Reason("no_devices", "2 devices are missing", ("b_0",), 2)))
    world.record(facts.JobCancelled(JobId("b_2"), "not needed"), by="ann")
    world.record(facts.JobRequeued(JobId("b_2"), 0), by="ann")
    world.record(facts.JobHeld(JobId("b_2"), Reason("held", "by ann")), by="ann")
    world.record(facts.JobReleased(JobId("b_2")), by="ann")


def _train(world: World) -> None:
    world.start("a", 1, [("n1", [0]), ("n2", [0])])
    world.record(facts.AttemptResumed(A, 1, 0))
    world.record(facts.CheckpointStarted(A, 1, 100))
    world.record(saved(A, 1, 100))
    world.record(facts.CheckpointStarted(A, 1, 150), facts.CheckpointFailed(A, 1, 150, "disk full"))
    world.record(saved(A, 1, 200), facts.CheckpointReleased(A, 100))
    world.record(facts.CheckpointRemoved(A, 100))
    world.record(facts.SaveAsked(A, 1, 1, world.now_ms + 60_000, Cause.REQUEUED, JobNext.QUEUED))
    world.record(facts.SaveAcknowledged(A, 1, 1, 250))
    world.record(saved(A, 1, 250))
    world.record(
        facts.AttemptStopping(A, 1, Cause.REQUEUED, "", JobNext.QUEUED, world.now_ms + 30_000)
    )
    for run in ("a.1.0", "a.1.1"):
        world.record(facts.RunEnded(RunId(run), 143, 15, Evidence.EXIT_STATUS, ""))
    world.record(
        facts.AttemptEnded(A, 1, Outcome.STOPPED, Cause.REQUEUED, "", JobNext.QUEUED, world.now_ms)
    )
    resume = ResumePoint(250, saved(A, 1, 250).uri, "cd" * 32, 1)
    world.record(placed("a", 2, [("n1", [1]), ("n2", [1])], resume=resume))
    world.record(
        facts.RunStarted(RunId("a.2.0")), facts.ResumeMismatched(A, 2, 0, "file:///other", "")
    )
    world.record(facts.CheckpointCondemned(A, 250, "shard 1 is short"))
    world.record(
        facts.AttemptStopping(A, 2, Cause.RESUME_MISMATCH, "", JobNext.HELD, world.now_ms + 30_000)
    )
    world.record(
        *[facts.RunEnded(RunId(f"a.2.{i}"), 0, 9, Evidence.KILLED_AND_REAPED, "") for i in (0, 1)]
    )
    world.record(
        facts.AttemptEnded(A, 2, Outcome.FAILED, Cause.RESUME_MISMATCH, "", JobNext.HELD, 0)
    )


def _lose_a_node(world: World) -> None:
    world.start("b_0", 1, [("n3", [2])])
    world.record(facts.BreakerOpened("incident-1", "two of three nodes are silent", 2))
    world.record(facts.BreakerClosed("incident-1"))
    world.record(facts.NodeSuspected(N2, 6_000), facts.NodeSuspected(N3, 6_000))
    world.record(facts.NodeRecovered(N2))
    world.record(facts.NodeLost(N3, 1, "silent for 15 s"))
    b0 = JobId("b_0")
    world.record(facts.AttemptStopping(b0, 1, Cause.NODE_LOST, "n3", JobNext.QUEUED, world.now_ms))
    world.record(
        facts.AttemptEnded(b0, 1, Outcome.LOST, Cause.NODE_LOST, "n3", JobNext.QUEUED, world.now_ms)
    )
    world.start("b_0", 2, [("n1", [3])])
    world.record(facts.NodeJoined(N3, 2, inventory(boot_id="boot-2")))
    world.record(facts.RunEnded(RunId("b_0.1.0"), 0, 0, Evidence.NODE_REBOOTED, "boot-2"))


def _finish(world: World) -> None:
    b0 = JobId("b_0")
    world.record(facts.TrainingFinished(b0, 2, 1_000))
    world.record(facts.RunEnded(RunId("b_0.2.0"), 0, 0, Evidence.EXIT_STATUS, ""))
    world.record(
        facts.AttemptEnded(b0, 2, Outcome.SUCCEEDED, Cause.PROGRAM_EXITED, "", JobNext.SUCCEEDED, 0)
    )
    world.record(facts.JobRetired(b0))


def _maintain(world: World) -> None:
    world.record(facts.DeviceDegraded(N1, 0, Reason("xid_63", "row remap pending")))
    world.record(facts.DeviceFaulted(N1, 0, Reason("xid_79", "fell off the bus")))
    world.record(facts.DeviceRecovered(N1, 0))
    world.record(facts.NicDegraded(N1, "ib0", Reason("errors", "symbol errors")))
    world.record(facts.NicFaulted(N1, "ib0", Reason("down", "down for 35 s")))
    world.record(facts.NicRecovered(N1, "ib0"))
    world.record(facts.NodeCordoned(N2, "fan"), by="root")
    world.record(facts.NodeUncordoned(N2), by="root")
    world.record(facts.NodeDrainStarted(N2, world.now_ms + 600_000, "kernel"), by="root")
    world.record(facts.NodeDrained(N2))
    world.record(
        facts.InputGapAccepted("reports", 0, 0, 40, "retention"),
        by="root",
        consumed=(Position("reports", 0, 40, 42),),
    )


def _leave(world: World) -> None:
    world.record(facts.NodeRemoved(N2), by="root")
    spare = QueueId("spare")
    world.record(
        facts.QueueApplied(spare, "default", -1, -1, -1), facts.QueueRemoved(spare), by="root"
    )
    world.open_term("leader-2")
