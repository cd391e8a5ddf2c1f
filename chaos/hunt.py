"""`python -m chaos bugs`: plants each known bug in turn and plays seeds until it is found; all must be, within the bound."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from chaos.bugs import BY_NAME, Bug
from chaos.seeds import Played, Task, all_of, cores


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `bugs`."""
    parser.add_argument(
        "names", nargs="*", choices=[[], *BY_NAME], metavar="BUG", help="only these"
    )
    parser.add_argument("--seeds", type=int, default=60, metavar="N", help="bound for each bug")
    parser.add_argument("--processes", type=int, default=cores(), metavar="P")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")


def run(options: argparse.Namespace) -> int:
    """0 only if every planted bug is found."""
    chosen = [BY_NAME[name] for name in options.names] or list(BY_NAME.values())
    found: dict[str, Played | None] = {}
    width = max(len(bug.name) for bug in chosen)
    for bug in chosen:
        began = time.monotonic()
        played = find(bug, seeds=options.seeds, processes=options.processes)
        found[bug.name] = played
        took_s = time.monotonic() - began
        if played is None:
            print(
                f"{bug.name:<{width}}  NOT FOUND in {options.seeds} seeds ({took_s:.0f} s): {bug.summary}"
            )
            continue
        print(
            f"{bug.name:<{width}}  seed {played.seed:<4} {took_s:5.1f} s  {played.broken[0][:110]}",
            flush=True,
        )
    missed = [name for name, played in found.items() if played is None]
    print(f"{len(found) - len(missed)} of {len(found)} planted bugs found")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(_result(found), indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


def find(bug: Bug, *, seeds: int, processes: int) -> Played | None:
    """The first seed that finds it, the one that did last time first."""
    first = [Task(bug.scenario, bug.seed, bug.name)]
    rest = [Task(bug.scenario, seed, bug.name) for seed in range(1, seeds + 1) if seed != bug.seed]
    for tasks in (first, rest[: seeds - 1]):
        for played in all_of(tasks, processes=processes):
            if played.broken:
                return played
    return None


def _result(found: dict[str, Played | None]) -> dict[str, object]:
    return {
        name: None
        if played is None
        else {
            "seed": played.seed,
            "broken": played.broken[:3],
            "replay": f"python -m chaos sim {BY_NAME[name].scenario} --seeds 1 --first-seed {played.seed} --bug {name}",
        }
        for name, played in found.items()
    }
