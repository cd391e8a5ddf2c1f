"""Which adapters the agent runs on: the only file of the agent that names one."""

from __future__ import annotations

from pathlib import Path

from services.runtime.adapters.clock import SystemClock
from services.runtime.adapters.process import ProcessExecutor, ProcessSettings
from services.runtime.ports import Clock


def make_clock() -> Clock:
    """The clocks of this host."""
    return SystemClock()


def make_executor(state: Path, settings: ProcessSettings) -> ProcessExecutor:
    """Processes of this host; it is both the Executor and the RunFiles port."""
    return ProcessExecutor(state, settings)


def process_settings(*, log_mib: int, processes_max: int, ended_runs_kept: int) -> ProcessSettings:
    """Bounds of a run, in the units that operators use."""
    return ProcessSettings(
        log_bytes_max=log_mib << 20, processes_max=processes_max, ended_runs_kept=ended_runs_kept
    )
