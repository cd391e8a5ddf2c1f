"""The lifecycle of a checkpoint: saved training state of a job at a step.

Durable only by CheckpointSaved. Released means that the registry no longer needs it; its files may go.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, unique
from typing import Final

import msgspec
from msgspec.structs import replace

from statemachines.facts import (
    CheckpointCondemned,
    CheckpointFact,
    CheckpointFailed,
    CheckpointReleased,
    CheckpointRemoved,
    CheckpointSaved,
    CheckpointStarted,
)
from statemachines.lifecycle import next_state
from statemachines.values import JobId, Reach, Tier


@unique
class CheckpointState(StrEnum):
    """Where a checkpoint is."""

    SAVING = "saving"
    DURABLE = "durable"
    FAILED = "failed"
    CONDEMNED = "condemned"
    RELEASED = "released"
    REMOVED = "removed"


_S = CheckpointState
# A first CheckpointStarted or CheckpointSaved makes it (see `begin`, `saved`).
LIFECYCLE: Final[Mapping[tuple[CheckpointState, type], CheckpointState]] = {
    (_S.SAVING, CheckpointSaved): _S.DURABLE,
    (_S.SAVING, CheckpointFailed): _S.FAILED,
    (_S.DURABLE, CheckpointReleased): _S.RELEASED,
    (_S.DURABLE, CheckpointCondemned): _S.CONDEMNED,
    # Gone though nobody released it: recorded, and no longer a restart point.
    (_S.DURABLE, CheckpointRemoved): _S.REMOVED,
    (_S.CONDEMNED, CheckpointReleased): _S.RELEASED,
    (_S.CONDEMNED, CheckpointRemoved): _S.REMOVED,
    (_S.RELEASED, CheckpointRemoved): _S.REMOVED,
}


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Saved training state; unset before it is durable: uri, bytes, tier, reach, times."""

    job: JobId
    step: int
    attempt: int
    state: CheckpointState
    started_at_ms: int
    saved_at_ms: int = 0
    uri: str = ""
    bytes: int = 0
    tier: Tier | None = None
    reach: Reach | None = None
    load_ms: int = 0
    save_ms: int = 0
    manifest: str = ""
    data_state: bool = False
    by_marker: bool = False
    node: str = ""


def begin(fact: CheckpointStarted, at_ms: int) -> Checkpoint:
    """A save that has begun."""
    return Checkpoint(fact.job, fact.step, fact.attempt, _S.SAVING, at_ms)


def saved(fact: CheckpointSaved, at_ms: int) -> Checkpoint:
    """A durable checkpoint of which no beginning was reported."""
    return _durable(Checkpoint(fact.job, fact.step, fact.attempt, _S.SAVING, at_ms), fact, at_ms)


def advance(checkpoint: Checkpoint, fact: CheckpointFact, at_ms: int) -> Checkpoint:
    """Apply one recorded fact; raises IllegalTransition."""
    state = next_state(
        LIFECYCLE, checkpoint.state, fact, f"checkpoint {checkpoint.step} of job {checkpoint.job}"
    )
    match fact:
        case CheckpointSaved():
            return _durable(checkpoint, fact, at_ms)
        case (
            CheckpointFailed() | CheckpointReleased() | CheckpointRemoved() | CheckpointCondemned()
        ):
            return replace(checkpoint, state=state)


def _durable(checkpoint: Checkpoint, fact: CheckpointSaved, at_ms: int) -> Checkpoint:
    return replace(
        checkpoint,
        attempt=fact.attempt,
        state=_S.DURABLE,
        saved_at_ms=at_ms,
        uri=fact.uri,
        bytes=fact.bytes,
        tier=fact.tier,
        reach=fact.reach,
        load_ms=fact.load_ms,
        save_ms=fact.save_ms,
        manifest=fact.manifest,
        data_state=fact.data_state,
        by_marker=fact.by_marker,
        node=fact.node,
    )
