"""`tidemilld topics check|apply`: compares the topics of a cell with what is declared, and makes them so.

Prints one line a difference; `apply` does those that cannot lose a record, and may be repeated. It never deletes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta

from services.runtime.exits import ExitCode
from services.runtime.settings import CellSettings, SettingsError, load
from services.runtime.topic_plan import (
    REPLICAS_DEFAULT,
    Kind,
    Step,
    TopicAdmin,
    WantedTopic,
    differences,
    wanted_topics,
)
from services.runtime.topic_rights import Right, RightsAdmin, rights
from services.runtime.wiring import open_topic_admin


class TopicsSettings(CellSettings, frozen=True, kw_only=True):
    """What an operator declares beyond topics.proto."""

    acls: Annotated[bool, Meta(description="Compare, or grant, the rights of each role too")] = (
        False
    )
    replicas: Annotated[
        int, Meta(ge=1, le=9, description="Copies of each topic, each on another broker")
    ] = REPLICAS_DEFAULT
    partitions: Annotated[
        tuple[str, ...],
        Meta(description="Partitions of topics that may have more, TOPIC=N, such as requests=4"),
    ] = ()
    principals: Annotated[
        tuple[str, ...],
        Meta(
            description="Principals of roles, ROLE=PRINCIPAL, where not User:tidemill-ROLE; those with a "
            "comma go into the settings file"
        ),
    ] = ()
    outside_writers: Annotated[
        tuple[str, ...],
        Meta(
            description="Programs that may write a topic by themselves, TOPIC=PRINCIPAL, such as "
            "progress=User:trainers"
        ),
    ] = ()


class Declared(msgspec.Struct, frozen=True):
    """The same, taken apart."""

    cell: str
    replicas: int = REPLICAS_DEFAULT
    partitions: Mapping[str, int] = msgspec.field(default_factory=dict)
    acls: bool = False
    principals: Mapping[str, str] = msgspec.field(default_factory=dict)
    outside_writers: Mapping[str, str] = msgspec.field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    """0: all is as declared; 1: it is not. Raises SettingsError, PortError."""
    action, rest = (argv[0], argv[1:]) if argv else ("", argv)
    if action not in _ACTIONS:
        asked = action in {"-h", "--help"}
        usage = f"usage: tidemilld topics {'|'.join(_ACTIONS)} [FLAGS]\n\n{__doc__}"
        print(
            f"{usage}\n`tidemilld topics check --help` lists the flags.",
            file=sys.stdout if asked else sys.stderr,
        )
        return ExitCode.STOPPED if asked else ExitCode.USAGE
    settings = load(TopicsSettings, "topics", rest, summary=(__doc__ or "").split("\n")[0])
    declared = declare(settings)
    done = _ACTIONS[action](open_topic_admin(settings), declared, print)
    return ExitCode.STOPPED if done else ExitCode.FAILED


def declare(settings: TopicsSettings) -> Declared:
    """The declaration that the settings make; raises SettingsError."""
    partitions = _pairs("partitions", settings.partitions)
    try:
        counts = {suffix: int(count) for suffix, count in partitions.items()}
    except ValueError as error:
        raise SettingsError(f"setting partitions: TOPIC=N, such as requests=4 ({error})") from error
    return Declared(
        settings.cell,
        settings.replicas,
        counts,
        settings.acls,
        _pairs("principals", settings.principals),
        _pairs("outside_writers", settings.outside_writers),
    )


def _pairs(setting: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise SettingsError(f"setting {setting}: {text!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


class Admin(TopicAdmin, RightsAdmin, Protocol):
    """Both."""


def check(admin: Admin, declared: Declared, say: Callable[[str], None]) -> bool:
    """Print every difference; whether there is none."""
    steps = _steps(admin, declared)
    missing = _missing(admin, declared)
    _print(steps, missing, say)
    return not missing and all(step.kind is Kind.SAME for step in steps)


def apply(admin: Admin, declared: Declared, say: Callable[[str], None]) -> bool:
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


def _wanted(admin: Admin, declared: Declared) -> list[WantedTopic]:
    try:
        return wanted_topics(
            declared.cell,
            brokers=admin.brokers(),
            replicas=declared.replicas,
            partitions=declared.partitions,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _steps(admin: Admin, declared: Declared) -> list[Step]:
    wanted = _wanted(admin, declared)
    return list(differences(wanted, admin.find([topic.name for topic in wanted])))


def _missing(admin: Admin, declared: Declared) -> list[Right]:
    if not declared.acls:
        return []
    try:
        wanted = rights(
            declared.cell, principals=declared.principals, outside_writers=declared.outside_writers
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
    have = admin.granted(wanted)
    return [right for right in wanted if right not in have]


def _print(steps: Sequence[Step], missing: Sequence[Right], say: Callable[[str], None]) -> None:
    for step in steps:
        say(_line(step))
    for right in missing:
        say(f"{Kind.CREATE} {right}")


def _line(step: Step) -> str:
    return f"{step.kind} {step.topic:24} {step.text}"


_ACTIONS: Final = {"check": check, "apply": apply}
