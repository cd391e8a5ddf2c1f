"""How a lifecycle table is read. Owns the one error that an illegal (state, fact) pair raises.

A table maps (state, fact type) to the next state; what is not in it is illegal. A fact is written by the leader after
it looked, so an illegal one is a bug and stops the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

State = TypeVar("State", bound=StrEnum)


class IllegalTransition(AssertionError):  # noqa: N818 - named for what happened
    """A fact that the lifecycle does not allow in this state."""

    def __init__(self, entity: str, state: str, fact: object) -> None:
        super().__init__(
            f"{entity} is {state}: {type(fact).__name__} is not legal there ({fact!r})"
        )
        self.entity = entity
        self.state = state
        self.fact = fact


def next_state(
    table: Mapping[tuple[State, type], State], state: State, fact: object, entity: str
) -> State:
    """The state after `fact`; raises IllegalTransition for a pair that is not in the table."""
    after = table.get((state, type(fact)))
    if after is None:
        raise IllegalTransition(entity, state, fact)
    return after
