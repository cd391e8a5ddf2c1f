"""Settings that decisions depend on. Recorded as a fact, so that a replay decides the same; PolicyApplied is the value."""

from __future__ import annotations

from typing import Final, TypeAlias

from statemachines.facts import PolicyApplied

Policy: TypeAlias = PolicyApplied

DEFAULT_POLICY: Final = PolicyApplied(
    aging_ms_per_point=60_000,  # Waiting this long is worth one point of priority.
    starvation_after_ms=600_000,  # A head of the line that waited longer keeps others from passing it.
    retire_after_ms=3_600_000,  # Finished jobs leave hot state after this.
    fence_after_ms=600_000,  # An agent cut off for longer kills runs that must not overlap.
    fence_margin_ms=30_000,  # The leader waits this much longer than the agent.
    grace_ms=30_000,  # Between the stop signal and the kill.
    save_wait_ms=120_000,  # For an early save that was asked for.
    max_attempts=-1,  # Attempts that may end badly, in all; -1: no bound.
    max_attempts_without_progress=3,  # In a row without a new durable checkpoint; then held.
    backoff_ms=1_000,  # First wait before another attempt; doubles up to 32 times this.
    keep_checkpoints=2,
    start_timeout_ms=300_000,  # From placement until every member runs.
    port_first=20_000,  # MASTER_PORT range.
    port_count=10_000,
)
