"""What a benchmark is, and how it is found, run and reported. It measures nothing itself.

A module bench/NAME.py is the benchmark NAME: the first line of its docstring is its summary, `run(options)` measures,
and `arguments(parser)`, if there, adds options of its own. Files that begin with an underscore are shared code.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

_FOLDER: Final = Path(__file__).parent
_NOT_BENCHMARKS: Final = frozenset({"__init__", "__main__", "registry"})


class Bar(msgspec.Struct, frozen=True):
    """A figure that is to be reached: `want` says how, for people and programs."""

    value: float
    want: str
    ok: bool


def at_least(value: float, bound: float) -> Bar:
    """The more the better."""
    return Bar(value, f">= {bound:g}", value >= bound)


def at_most(value: float, bound: float) -> Bar:
    """The less the better."""
    return Bar(value, f"<= {bound:g}", value <= bound)


class Measured(msgspec.Struct, frozen=True):
    """What a run found. Units are in the names; a figure that was not measured is absent, never zero."""

    figures: Mapping[str, object]
    bars: Mapping[str, Bar] = {}
    params: Mapping[str, object] = {}


Run = Callable[[argparse.Namespace], Measured]


def names() -> list[str]:
    """Every benchmark."""
    found = (path.stem for path in _FOLDER.glob("*.py"))
    return sorted(
        name for name in found if not name.startswith("_") and name not in _NOT_BENCHMARKS
    )


def summary(name: str) -> str:
    """First line of its docstring; the module is not run for it."""
    source = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def load(name: str) -> ModuleType:
    """The module of a benchmark."""
    return importlib.import_module(f"bench.{name}")


def parser_of(name: str, module: ModuleType) -> argparse.ArgumentParser:
    """Its options: those of every benchmark and its own."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=summary(name))
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result there too")
    parser.add_argument(
        "--scale",
        choices=("small", "full"),
        default="full",
        help="small: seconds, for a first look",
    )
    if hasattr(module, "arguments"):
        module.arguments(parser)
    return parser


def report(name: str, options: argparse.Namespace, measured: Measured) -> str:
    """The one JSON object of a run."""
    given = {key: value for key, value in vars(options).items() if key != "json"}
    return json.dumps(
        {
            "name": name,
            "commit": _commit(),
            "machine": machine(),
            "params": given | dict(measured.params),
            "figures": dict(measured.figures),
            "bars": {figure: msgspec.to_builtins(bar) for figure, bar in measured.bars.items()},
        },
        default=str,
    )


def machine() -> dict[str, object]:
    """What it was measured on."""
    memory_kib = next(
        (int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")),
        0,
    )
    model = next(
        (
            line.partition(":")[2].strip()
            for line in _lines("/proc/cpuinfo")
            if "model name" in line
        ),
        "",
    )
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": memory_kib // 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def _commit() -> str:
    """The commit, with a plus when files differ from it; empty outside a checkout."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=_FOLDER, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return described.stdout.strip()
