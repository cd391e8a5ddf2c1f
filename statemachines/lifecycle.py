"""How a lifecycle table is read. Owns the one error that an illegal (state, fact) pair raises.

A table maps (state, fact type) to the next state; what is not in it is illegal. A fact is written by the leader after
it looked, so an illegal one is a bug and stops the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


class Word(StrEnum):
    """A word of a closed list: a state, a cause, an outcome.

    It hashes as the string it is. The hash of an enum is a Python call, and tables are read for every fact.
    """

    __hash__ = str.__hash__


StateT = TypeVar("StateT", bound=Word)


class IllegalTransition(AssertionError):
    """A fact that the lifecycle does not allow in this state."""

    def __init__(self, entity: str, state: str, fact: object) -> None:
        super().__init__(
            f"{entity} is {state}: {type(fact).__name__} is not legal there ({fact!r})"
        )
        self.entity = entity
        self.state = state
        self.fact = fact


def next_state(
    table: Mapping[tuple[StateT, type], StateT], state: StateT, fact: object, kind: str, name: str
) -> StateT:
    """The state after `fact`; raises IllegalTransition for a pair that is not in the table.

    `kind` and `name` say whose state it is; they are joined only when there is something to tell.
    """
    after = table.get((state, type(fact)))
    if after is None:
        raise IllegalTransition(f"{kind} {name}", state, fact)
    return after
