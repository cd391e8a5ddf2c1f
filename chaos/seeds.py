"""Plays many seeds, on as many processes as there are cores, and gathers what came of each. Never judges a history."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from chaos import bugs, scenarios
from simulation.history import play


class Played(msgspec.Struct, frozen=True):
    """One history, as it travels between processes."""

    seed: int
    broken: tuple[str, ...]
    history: str
    virtual_s: float
    wall_s: float
    entries: int
    seen: Mapping[str, int]


class Task(msgspec.Struct, frozen=True):
    """What to play; `bug` is planted meanwhile."""

    scenario: str
    seed: int
    bug: str = ""


def one(task: Task) -> Played:
    """Play it here."""
    began = time.monotonic()
    with bugs.BY_NAME[task.bug].planted() if task.bug else contextlib.nullcontext():
        verdict = play(scenarios.load(task.scenario), task.seed).verdict
    return Played(
        task.seed, verdict.broken, verdict.history, verdict.virtual_s, time.monotonic() - began,
        verdict.entries, verdict.seen,
    )  # fmt: skip


def all_of(tasks: Sequence[Task], *, processes: int) -> Iterator[Played]:
    """Each as it is done; in order of the tasks when there is one process."""
    if processes == 1 or len(tasks) == 1:
        yield from map(one, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(one, tasks)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))
