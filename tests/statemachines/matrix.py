"""Every (state, fact) pair of a lifecycle, with what a test says must come of it.

A test writes down which pairs are legal and the whole value after each; all others must be illegal. The facts come
from the union that the lifecycle is typed with, so a new fact without a decision fails.
"""

from __future__ import annotations

from typing import Any, get_args

from statemachines.lifecycle import Word


def every_pair(states: type[Word], union: Any) -> list[tuple[Word, type]]:
    """All pairs, in order, to parametrize a test with."""
    return [(state, kind) for state in states for kind in get_args(union)]


def pair_id(value: Any) -> str:
    """A readable id of a parameter."""
    return value.__name__ if isinstance(value, type) else str(value)
