"""The lifecycle of a checkpoint: saved training state of a job at a step.

Durable only by CheckpointSaved. Released means that the registry no longer needs it; its files may go.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import unique
from typing import Final, assert_never

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
from statemachines.lifecycle import Word, next_state
from statemachines.values import JobId, Reach, Tier


@unique
class CheckpointState(Word):
    """Where a checkpoint is."""

    SAVING = "saving"
    DURABLE = "durable"
    FAILED = "failed"
    CONDEMNED = "condemned"
    RELEASED = "released"
    REMOVED = "removed"


_S: Final = CheckpointState
# A first CheckpointStarted or CheckpointSaved makes it (see `begin`, `saved`); a later attempt may save the step again,
# unless that step is durable.
LIFECYCLE: Final[Mapping[tuple[CheckpointState, type], CheckpointState]] = {
    (_S.SAVING, CheckpointStarted): _S.SAVING,
    (_S.SAVING, CheckpointSaved): _S.DURABLE,
    (_S.SAVING, CheckpointFailed): _S.FAILED,
    (_S.DURABLE, CheckpointReleased): _S.RELEASED,
    (_S.DURABLE, CheckpointCondemned): _S.CONDEMNED,
    # Gone though nobody released it: recorded, and no longer a restart point.
    (_S.DURABLE, CheckpointRemoved): _S.REMOVED,
    (_S.FAILED, CheckpointStarted): _S.SAVING,
    (_S.FAILED, CheckpointSaved): _S.DURABLE,
    (_S.CONDEMNED, CheckpointStarted): _S.SAVING,
    (_S.CONDEMNED, CheckpointSaved): _S.DURABLE,
    (_S.CONDEMNED, CheckpointReleased): _S.RELEASED,
    (_S.CONDEMNED, CheckpointRemoved): _S.REMOVED,
    (_S.RELEASED, CheckpointStarted): _S.SAVING,
    (_S.RELEASED, CheckpointSaved): _S.DURABLE,
    (_S.RELEASED, CheckpointRemoved): _S.REMOVED,
    (_S.REMOVED, CheckpointStarted): _S.SAVING,
    (_S.REMOVED, CheckpointSaved): _S.DURABLE,
}
# Checkpoints of a job in hot state; beyond it those that are no restart point go, oldest first.
KEPT_MAX: Final = 64
_DURABLE: Final = _S.DURABLE
_SAVING: Final = _S.SAVING
_PASSED: Final = frozenset({_S.FAILED, _S.REMOVED})
_PASSED_BY_DURABLE: Final = frozenset({_S.FAILED, _S.REMOVED, _S.SAVING})
_NO_RESTART: Final = frozenset({_S.RELEASED, _S.CONDEMNED})


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


def saved(fact: CheckpointSaved, *, started_at_ms: int, at_ms: int) -> Checkpoint:
    """A durable checkpoint; begun now, for all we know, when no beginning was reported."""
    return Checkpoint(
        fact.job, fact.step, fact.attempt, _DURABLE, started_at_ms, at_ms, fact.uri, fact.bytes, fact.tier,
        fact.reach, fact.load_ms, fact.save_ms, fact.manifest, fact.data_state, fact.by_marker, fact.node,
    )  # fmt: skip


def advance(checkpoint: Checkpoint, fact: CheckpointFact, at_ms: int) -> Checkpoint:
    """Apply one recorded fact; raises IllegalTransition."""
    state = next_state(LIFECYCLE, checkpoint.state, fact, "a checkpoint of job", checkpoint.job)
    match fact:
        case CheckpointStarted():
            return begin(fact, at_ms)
        case CheckpointSaved():
            ours = checkpoint.state is _SAVING and checkpoint.attempt == fact.attempt
            return saved(
                fact, started_at_ms=checkpoint.started_at_ms if ours else at_ms, at_ms=at_ms
            )
        case (
            CheckpointFailed() | CheckpointReleased() | CheckpointRemoved() | CheckpointCondemned()
        ):
            return replace(checkpoint, state=state)
        case _:
            assert_never(fact)


def keep(others: tuple[Checkpoint, ...], one: Checkpoint) -> tuple[Checkpoint, ...]:
    """Those of a job with `one` in its place, sorted by step.

    Older ones make room when nothing more can come of them: failed, removed and, below a durable one, those that were
    still being saved. A job whose program never reports what it removed is held to KEPT_MAX.
    """
    if not others:
        return (one,)
    step, passed = one.step, _PASSED_BY_DURABLE if one.state is _DURABLE else _PASSED
    kept = [
        other
        for other in others
        if other.step > step or (other.step < step and other.state not in passed)
    ]
    kept.append(one)
    if len(kept) > 1 and kept[-2].step > step:
        kept.sort(key=lambda each: each.step)
    if len(kept) > KEPT_MAX:
        for i, each in enumerate(kept):
            if each.state in _NO_RESTART:
                del kept[i]
                break
    return tuple(kept)
