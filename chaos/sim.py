"""`python -m chaos sim`: many seeds of one scenario; a violation ends it with what a person needs to repeat it.

A failing seed is played again with fewer faults until none can be left out, and the one command that replays it is
printed. Rare states that were reached, and those that never were, are listed: a search that reaches nothing proves
nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, get_args

import msgspec

from chaos import bugs, report, scenarios
from chaos.minimise import minimise
from chaos.seeds import Played, Task, all_of, cores
from simulation.history import KINDS, play, setup_of
from simulation.scenario import Setup
from statemachines.facts import Fact
from statemachines.values import Cause, Evidence

# What no simulated history has: nobody asks for it there, or its time is longer than a history.
_NOT_HERE: Final = frozenset(
    {
        "JobRetired", "QueueRemoved", "NodeRemoved", "CheckpointRemoved", "PolicyApplied",
        f"attempt ended: {Cause.PREEMPTED.value}", f"run ended: {Evidence.FENCE_CONFIRMED.value}",
    }
)  # fmt: skip


def expected() -> list[str]:
    """Rare states that any search worth its time has seen."""
    states = [
        *sorted(fact.__name__ for fact in get_args(Fact)),
        *[f"attempt ended: {cause.value}" for cause in Cause],
        *[f"run ended: {evidence.value}" for evidence in Evidence],
        *[f"fault: {kind}" for kind in KINDS],
        "void entry", "resumed from a checkpoint", "node came back as another incarnation",
    ]  # fmt: skip
    return [state for state in states if state not in _NOT_HERE]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sim`."""
    parser.add_argument("scenario", nargs="?", default=scenarios.DEFAULT)
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many histories")
    parser.add_argument("--first-seed", type=int, default=1, metavar="K")
    parser.add_argument("--processes", type=int, default=cores(), metavar="P")
    parser.add_argument(
        "--keep-going", action="store_true", help="play all seeds though one has failed"
    )
    parser.add_argument(
        "--reach-all", action="store_true", help="fail too when a rare state was never reached"
    )
    parser.add_argument("--bug", default="", choices=["", *bugs.BY_NAME], help="plant this bug")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html", help="draw the failing history, or the last"
    )


def run(options: argparse.Namespace) -> int:
    """Play; 1 when something did not hold, 2 when there is no such scenario."""
    if not scenarios.load(options.scenario).simulated:
        raise scenarios.UnknownScenarioError(
            f"{options.scenario} is only played live: python -m chaos live {options.scenario}"
        )
    first, last = options.first_seed, options.first_seed + options.seeds
    tasks = [Task(options.scenario, seed, options.bug) for seed in range(first, last)]
    progress, seen, failed = _Progress(len(tasks)), Counter[str](), list[Played]()
    for played in all_of(tasks, processes=min(options.processes, len(tasks))):
        seen.update(played.seen)
        progress.add(played)
        if played.broken:
            failed.append(played)
            if not options.keep_going:
                break
    progress.end()
    never = [state for state in expected() if not seen[state]]
    failed.sort(key=lambda each: each.seed)
    smallest = _explain(options, failed[0]) if failed else None
    _say_rare(seen, never, asked=options.reach_all or options.scenario == scenarios.DEFAULT)
    result = _result(options, progress, failed, seen, never, smallest)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    if options.report is not None:
        _draw(options, failed[0].seed if failed else last - 1, smallest)
    print(_summary(progress, failed))
    if options.reach_all and never:
        print(f"{len(never)} rare states were never reached: what no history reaches is not tested")
        return 1
    return 1 if failed else 0


class _Progress:
    """One live line on a terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.virtual_s, self.entries = total, 0, 0.0, 0
        self._began = time.monotonic()
        self._live = sys.stderr.isatty()

    @property
    def wall_s(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    @property
    def speed(self) -> float:
        """Virtual seconds a second."""
        return self.virtual_s / max(self.wall_s, 1e-9)

    def add(self, played: Played) -> None:
        """One more."""
        self.done += 1
        self.virtual_s += played.virtual_s
        self.entries += played.entries
        if self._live:
            sys.stderr.write(
                f"\r{self.done}/{self.total} histories, {self.virtual_s / 3600:.1f} h of virtual time, "
                f"{self.speed:.0f}x real time "
            )
            sys.stderr.flush()

    def end(self) -> None:
        """No more."""
        if self._live:
            sys.stderr.write("\n")


def replay_command(options: argparse.Namespace, seed: int) -> str:
    """What repeats one history."""
    bug = f" --bug {options.bug}" if options.bug else ""
    return f"python -m chaos sim {options.scenario} --seeds 1 --first-seed {seed}{bug}"


def _planted(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    return bugs.BY_NAME[options.bug].planted() if options.bug else contextlib.nullcontext()


def _explain(options: argparse.Namespace, failed: Played) -> Setup:
    """Print what is broken, the fewest faults that break it, and the command."""
    print(f"seed {failed.seed} of {options.scenario}:")
    for line in failed.broken[:5]:
        print(f"  {line}")
    scenario = scenarios.load(options.scenario)
    with _planted(options):
        found = play(scenario, failed.seed)
        if found.verdict.history != failed.history:
            print("  not repeatable: played again, its history differs (that is a bug too)")
        smallest = minimise(scenario, failed.seed, found.setup, failed.broken)
    print(f"fewest faults that break it ({len(found.setup.plan)} at first):")
    for fault in smallest.plan:
        print(
            f"  {fault.at_ms / 1000:8.3f} s  {fault.kind} {fault.target} {fault.lasts_ms} ms {fault.what}".rstrip()
        )
    if not smallest.plan:
        print("  none: the cell and its work are enough")
    calm = "well" if smallest.shape.broker == type(smallest.shape.broker)() else "ill"
    print(f"  on {smallest.shape.nodes} nodes, broker {calm}, crash_ppm {smallest.shape.crash_ppm}")
    print(f"replay: {replay_command(options, failed.seed)}")
    return smallest


def _say_rare(seen: Counter[str], never: list[str], *, asked: bool) -> None:
    if not asked:
        return
    print(f"rare states reached: {len(expected()) - len(never)} of {len(expected())}")
    rarest = sorted((count, state) for state, count in seen.items() if state in set(expected()))
    print("  rarest: " + ", ".join(f"{state} ({count})" for count, state in rarest[:8]))
    if never:
        print("  never: " + ", ".join(never))


def _summary(progress: _Progress, failed: list[Played]) -> str:
    how = f"{len(failed)} broken" if failed else "all promises kept"
    return (
        f"{progress.done} histories, {progress.virtual_s / 3600:.2f} h of virtual time in {progress.wall_s:.1f} s "
        f"({progress.speed:.0f}x), {progress.entries} entries: {how}"
    )


def _result(
    options: argparse.Namespace,
    progress: _Progress,
    failed: list[Played],
    seen: Counter[str],
    never: list[str],
    smallest: Setup | None,
) -> dict[str, object]:
    return {
        "scenario": options.scenario,
        "first_seed": options.first_seed,
        "histories": progress.done,
        "virtual_s": round(progress.virtual_s, 3),
        "wall_s": round(progress.wall_s, 3),
        "speed": round(progress.speed, 1),
        "failed": [
            {"seed": each.seed, "broken": each.broken, "replay": replay_command(options, each.seed)}
            for each in failed
        ],
        "smallest": msgspec.to_builtins(smallest) if smallest else None,
        "seen": dict(sorted(seen.items())),
        "never": never,
    }


def _draw(options: argparse.Namespace, seed: int, smallest: Setup | None) -> None:
    scenario = scenarios.load(options.scenario)
    with _planted(options):
        history = play(scenario, seed, smallest)
    drawn, command = len(setup_of(scenario, seed).plan), replay_command(options, seed)
    page = report.html(options.scenario, scenario, history, command, drawn=drawn)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(page, encoding="utf-8")
    print(f"report: {options.report}")
