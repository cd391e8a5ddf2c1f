"""Settings of the scheduler. Those that decisions depend on are recorded in the log when a term opens with others."""

from __future__ import annotations

import os
import socket
import uuid
from typing import Annotated, Final

from msgspec import Meta

from services.runtime.settings import CellSettings, SettingsError
from services.scheduler.phases import Rules
from statemachines.policy import DEFAULT_POLICY, Policy

_P = DEFAULT_POLICY
_PORT_MAX: Final = 65_535


class SchedulerSettings(CellSettings, frozen=True, kw_only=True):
    """Flags, environment and file of `tidemilld scheduler`."""

    name: Annotated[
        str, Meta(max_length=128, description="Who leads, as the log says it; empty: HOST-PID")
    ] = ""
    inputs_per_step: Annotated[
        int, Meta(ge=1, le=100_000, description="Inputs decided at once, at most")
    ] = 2_000
    entries_in_flight: Annotated[
        int, Meta(ge=1, le=64, description="Entries appended and not yet read back, at most")
    ] = 4
    snapshot_entries: Annotated[
        int, Meta(ge=1, description="Entries after which a snapshot is taken")
    ] = 100_000
    snapshot_log_mib: Annotated[
        int, Meta(ge=1, description="MiB of log after which a snapshot is taken")
    ] = 64
    weather_patience_s: Annotated[
        int, Meta(ge=1, description="Seconds of failing storage or broker after which it ends")
    ] = 60

    aging_ms_per_point: Annotated[
        int, Meta(ge=0, description="Waiting this long is worth one point of priority; 0: never")
    ] = _P.aging_ms_per_point
    starvation_after_ms: Annotated[
        int,
        Meta(ge=0, description="A job that waited longer for room is passed no more; 0: never"),
    ] = _P.starvation_after_ms
    retire_after_ms: Annotated[
        int, Meta(ge=-1, description="Ended jobs leave hot state after this; -1: never")
    ] = _P.retire_after_ms
    fence_after_ms: Annotated[
        int,
        Meta(
            ge=-1,
            description="An agent cut off for longer kills runs that must not overlap; -1: never",
        ),
    ] = _P.fence_after_ms
    fence_margin_ms: Annotated[
        int, Meta(ge=5_000, description="The leader waits this much longer than the agent")
    ] = _P.fence_margin_ms
    grace_ms: Annotated[
        int, Meta(ge=0, description="Between the stop signal and the kill, where a job says none")
    ] = _P.grace_ms
    save_wait_ms: Annotated[int, Meta(ge=0, description="For an early save that was asked for")] = (
        _P.save_wait_ms
    )
    max_attempts: Annotated[
        int,
        Meta(
            ge=-1,
            description="Attempts of a job that may end badly, but not by hardware; -1: no bound",
        ),
    ] = _P.max_attempts
    max_attempts_without_progress: Annotated[
        int,
        Meta(
            ge=1,
            description="Bad ends, not by hardware, without a new durable checkpoint, after which it is held",
        ),
    ] = _P.max_attempts_without_progress
    backoff_ms: Annotated[
        int, Meta(ge=0, description="First wait before another attempt; doubles up to 32 times it")
    ] = _P.backoff_ms
    keep_checkpoints: Annotated[
        int, Meta(ge=1, description="Durable checkpoints kept of a job that says no number")
    ] = _P.keep_checkpoints
    start_timeout_ms: Annotated[
        int,
        Meta(ge=0, description="From placement until every member runs; 0: no limit"),
    ] = _P.start_timeout_ms
    port_first: Annotated[
        int, Meta(ge=1024, le=65_535, description="First port for rank 0 to listen on")
    ] = _P.port_first
    port_count: Annotated[int, Meta(ge=1, le=64_512, description="Ports in that range")] = (
        _P.port_count
    )

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        last = self.port_first + self.port_count - 1
        if last > _PORT_MAX:
            raise SettingsError(
                f"port_count: {self.port_count} ports from {self.port_first} on end at {last}, which is no port; at most "
                f"{_PORT_MAX - self.port_first + 1} from there"
            )

    @property
    def policy(self) -> Policy:
        """What decisions depend on."""
        return Policy(**{field: getattr(self, field) for field in Policy.__struct_fields__})

    def rules(self) -> Rules:
        """How this process leads; another nonce each time."""
        return Rules(
            leader=self.name or f"{socket.gethostname()}-{os.getpid()}",
            nonce=uuid.uuid4().hex,
            policy=self.policy,
            inputs_per_step=self.inputs_per_step,
            in_flight_max=self.entries_in_flight,
            snapshot_entries=self.snapshot_entries,
            snapshot_bytes=self.snapshot_log_mib << 20,
        )
