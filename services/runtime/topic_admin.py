"""`tidemilld topics check|apply`: compares the topics of a cell with what is declared, and makes them so.

Prints one line a difference; `apply` does those that cannot lose a record, and may be repeated. It never deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from services.runtime.topic_plan import (
    FoundTopic,
    Kind,
    Step,
    WantedTopic,
    differences,
    wanted_topics,
)
from services.runtime.topic_rights import Right, rights


class TopicAdmin(Protocol):
    """Administration of a broker cluster; raises PortError."""

    def brokers(self) -> int: ...
    def find(self, names: Sequence[str]) -> Mapping[str, FoundTopic]: ...
    def create(self, topic: WantedTopic) -> None: ...
    def raise_partitions(self, name: str, count: int) -> None: ...
    def configure(self, name: str, config: Mapping[str, str]) -> None: ...
    def granted(self, wanted: Sequence[Right]) -> set[Right]: ...
    def grant(self, rights: Sequence[Right]) -> None: ...


class Declared(msgspec.Struct, frozen=True):
    """What an operator declares beyond topics.proto. `replicas` None: 3, or as many as there are brokers."""

    cell: str
    replicas: int | None = None
    partitions: Mapping[str, int] = msgspec.field(default_factory=dict)
    acls: bool = False
    principals: Mapping[str, str] = msgspec.field(default_factory=dict)
    outside_writers: Mapping[str, str] = msgspec.field(default_factory=dict)


def check(admin: TopicAdmin, declared: Declared, say: Callable[[str], None]) -> bool:
    """Print every difference; whether there is none."""
    steps = _steps(admin, declared)
    missing = _missing(admin, declared)
    _print(steps, missing, say)
    return not missing and all(step.kind is Kind.SAME for step in steps)


def apply(admin: TopicAdmin, declared: Declared, say: Callable[[str], None]) -> bool:
    """Print every difference and do what loses nothing; whether all is as declared now."""
    steps = _steps(admin, declared)
    wanted = {topic.name: topic for topic in _wanted(admin, declared)}
    for step in steps:
        say(_line(step))
        match step.kind:
            case Kind.CREATE:
                admin.create(wanted[step.topic])
            case Kind.CHANGE if step.partitions:
                admin.raise_partitions(step.topic, step.partitions)
            case Kind.CHANGE:
                admin.configure(step.topic, step.config)
            case Kind.REFUSED | Kind.SAME:
                pass
    missing = _missing(admin, declared)
    _print([], missing, say)
    if missing:
        admin.grant(missing)
    refused = [step for step in steps if step.kind is Kind.REFUSED]
    if refused:
        say(f"{len(refused)} difference(s) left as they are: changing them could lose records.")
    return not refused


def _wanted(admin: TopicAdmin, declared: Declared) -> list[WantedTopic]:
    return wanted_topics(
        declared.cell,
        brokers=admin.brokers(),
        replicas=declared.replicas,
        partitions=declared.partitions,
    )


def _steps(admin: TopicAdmin, declared: Declared) -> list[Step]:
    wanted = _wanted(admin, declared)
    return list(differences(wanted, admin.find([topic.name for topic in wanted])))


def _missing(admin: TopicAdmin, declared: Declared) -> list[Right]:
    if not declared.acls:
        return []
    wanted = rights(
        declared.cell, principals=declared.principals, outside_writers=declared.outside_writers
    )
    have = admin.granted(wanted)
    return [right for right in wanted if right not in have]


def _print(steps: Sequence[Step], missing: Sequence[Right], say: Callable[[str], None]) -> None:
    for step in steps:
        say(_line(step))
    for right in missing:
        say(f"{Kind.CREATE} {right}")


def _line(step: Step) -> str:
    return f"{step.kind} {step.topic:24} {step.text}"
