"""Who may do what with the topics of a cell: rights of each role, derived from the declared writers and readers.

Pure. A role is the name of a service; its principal on the brokers is `User:<prefix><role>` unless told otherwise. No
role may write the log but the leader's, and none may write in transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from services.runtime import topics

PRINCIPAL_PREFIX: Final = "User:tidemill-"
# Its stream library keeps its own topics and group under the name of the application.
_HOSTED_BY_A_LIBRARY: Final = "health"


class Resource(StrEnum):
    TOPIC = "topic"
    GROUP = "group"


class Operation(StrEnum):
    READ = "read"
    WRITE = "write"
    DESCRIBE = "describe"
    CREATE = "create"


class Right(msgspec.Struct, frozen=True, order=True):
    """One allowing ACL. `prefixed`: of all names that begin with `name`."""

    principal: str
    resource: Resource
    name: str
    operation: Operation
    prefixed: bool = False

    def __str__(self) -> str:
        star = "*" if self.prefixed else ""
        return f"{self.principal} may {self.operation} {self.resource} {self.name}{star}"


class RightsAdmin(Protocol):
    """ACLs of a broker cluster; raises PortError."""

    def granted(self, wanted: Sequence[Right]) -> set[Right]:
        """Those of the rights that the brokers have."""

    def grant(self, rights: Sequence[Right]) -> None:
        """Add the rights; one that is there already is no error."""


def roles() -> list[str]:
    """The services that any topic names."""
    named = [role for topic in topics.TOPICS.values() for role in (*topic.writers, *topic.readers)]
    return sorted(set(named))


def rights(
    cell: str, *, principals: Mapping[str, str], outside_writers: Mapping[str, str]
) -> list[Right]:
    """Every right of the cell, sorted; raises ValueError for a role or a topic that there is not.

    `principals` maps a role to its principal where that is not the default; `outside_writers` lets one more principal
    write a topic, by suffix: a program that publishes progress or submissions by itself.
    """
    return sorted({*_of_roles(cell, principals), *_of_outside(cell, outside_writers)})


def _of_roles(cell: str, principals: Mapping[str, str]) -> Iterator[Right]:
    if unknown := sorted(principals.keys() - set(roles())):
        raise ValueError(f"principals: no role {unknown[0]!r}; there are {', '.join(roles())}")
    names = {role: principals.get(role, f"{PRINCIPAL_PREFIX}{role}") for role in roles()}
    for topic in topics.TOPICS.values():
        name = topic.name(cell)
        for role in topic.writers:
            yield Right(names[role], Resource.TOPIC, name, Operation.WRITE)
            yield Right(names[role], Resource.TOPIC, name, Operation.DESCRIBE)
        for role in topic.readers:
            yield Right(names[role], Resource.TOPIC, name, Operation.READ)
            yield Right(names[role], Resource.TOPIC, name, Operation.DESCRIBE)
            yield Right(names[role], Resource.GROUP, f"{cell}.{role}", Operation.READ)
    own = names[_HOSTED_BY_A_LIBRARY]
    for operation in Operation:
        yield Right(
            own, Resource.TOPIC, f"{cell}.{_HOSTED_BY_A_LIBRARY}-", operation, prefixed=True
        )


def _of_outside(cell: str, writers: Mapping[str, str]) -> Iterator[Right]:
    for suffix, principal in writers.items():
        if suffix not in topics.TOPICS or suffix == topics.LOG.suffix:
            raise ValueError(f"outside_writers: no program outside may write {suffix!r}")
        name = topics.TOPICS[suffix].name(cell)
        yield Right(principal, Resource.TOPIC, name, Operation.WRITE)
        yield Right(principal, Resource.TOPIC, name, Operation.DESCRIBE)
