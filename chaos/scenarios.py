"""The scenarios of chaos/scenarios/*.toml: what `list` shows and every runner plays. Data in, values out."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

import msgspec

from simulation.scenario import Scenario

FOLDER: Final = Path(__file__).parent / "scenarios"
# What `sim` plays when no scenario is named.
DEFAULT: Final = "anything"


class UnknownScenarioError(Exception):
    """There is none of that name, or its file cannot be used; the message says what to do."""


def names() -> list[str]:
    """All of them, in order."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def simulated() -> list[str]:
    """Those that the simulation has a model for."""
    return [name for name in names() if load(name).simulated]


def load(name: str, folder: Path = FOLDER) -> Scenario:
    """The scenario; raises UnknownScenarioError."""
    path = folder / f"{name}.toml"
    if not path.is_file():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see `python -m chaos list`"
        raise UnknownScenarioError(f"no scenario {name!r}; {hint}")
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Scenario)
    except msgspec.DecodeError as error:
        raise UnknownScenarioError(f"{path}: {error}") from error
