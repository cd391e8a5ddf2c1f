"""What a plan says. The leader turns each decision into one fact."""

from __future__ import annotations

from typing import TypeAlias

from statemachines.values import JobId, Placement, Reason, ResumePoint, Value


class Place(Value):
    """Start the next attempt of a job: every member has its node, all or nothing."""

    job: JobId
    placements: tuple[Placement, ...]
    resume: ResumePoint
    master_port: int
    why: Reason


class Wait(Value):
    """The job's reason for waiting is now this one."""

    job: JobId
    reason: Reason


Decision: TypeAlias = Place | Wait
