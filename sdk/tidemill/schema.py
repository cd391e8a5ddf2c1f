"""Checks a document against a table of keys: unknown keys with a suggestion, wrong values with their position.

Every fault of a document is found at once. It must never build a message or know a file format.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tidemill.source import Document, FileError, Place

Check: TypeAlias = Callable[[Any], Any]
INT32: Final = 2**31


class Fault(Exception):  # of a document, not of this program
    """What is wrong with one value."""


@dataclass(frozen=True, slots=True)
class Table:
    """What a mapping may hold: for each key a check, a nested table, or a list of tables."""

    keys: Mapping[str, Check | Table | Rows]
    required: Sequence[str] = ()
    # Other spellings, and what they are meant for.
    aliases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rows:
    """A list of mappings of one kind."""

    table: Table


def read(document: Document, table: Table, what: str) -> dict[str, Any]:
    """The checked values; raises FileError with every fault and where it stands."""
    faults: list[str] = []
    values = _read(document, table, document.value, (), faults)
    if faults:
        count = "one fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise FileError(f"{document.name} is no valid {what}: {count}", faults)
    return values


def _read(
    document: Document, table: Table, value: Any, place: Place, faults: list[str]
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        faults.append(
            f"{document.where(place)}: {_path(place)} must be a mapping, not {_shown(value)}"
        )
        return {}
    values: dict[str, Any] = {}
    for key, given in value.items():
        below = (*place, key)
        name = table.aliases.get(key, key)
        if name not in table.keys:
            faults.append(f"{document.where(below)}: unknown key {key!r}{_suggestion(key, table)}")
        elif name in values:
            faults.append(f"{document.where(below)}: {key!r} repeats {name!r}")
        else:
            values[name] = _value(document, table.keys[name], given, below, faults)
    missing = [key for key in table.required if key not in values]
    faults += [f"{document.where(place)}: {key!r} is missing{_in(place)}" for key in missing]
    return values


def _value(
    document: Document, check: Check | Table | Rows, given: Any, place: Place, faults: list[str]
) -> Any:
    match check:
        case Table():
            return _read(document, check, given, place, faults)
        case Rows(table=table) if isinstance(given, list):
            return [_read(document, table, row, (*place, i), faults) for i, row in enumerate(given)]
        case Rows():
            faults.append(
                f"{document.where(place)}: {_path(place)} must be a list, not {_shown(given)}"
            )
            return []
        case _:
            try:
                return check(given)
            except (Fault, ValueError) as error:
                faults.append(f"{document.where(place)}: {_path(place)}: {error}")
                return None


def _suggestion(key: str, table: Table) -> str:
    known = [*table.keys, *table.aliases]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {table.aliases.get(near[0], near[0])!r}?"
    return f"; known here: {', '.join(sorted(table.keys))}"


def _path(place: Place) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the document"


def _in(place: Place) -> str:
    return f" in {_path(place)}" if place else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


# ---------------------------------------------------------------- checks


def text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise Fault(f"must be text, not {_shown(value)}")


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Fault(f"must be true or false, not {_shown(value)}")


def integer(low: int, high: int = INT32 - 1) -> Check:
    """An integer from `low` to `high`."""

    def check(value: Any) -> int:
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Fault(f"must be a whole number, not {_shown(value)}")
        if not low <= value <= high:
            raise Fault(f"{value} is out of range; {low} to {high} are possible")
        return value

    return check


def bounded(parse: Callable[[Any], int], high: int) -> Check:
    """A quantity that the wire can carry."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise Fault(f"must be a quantity, not {_shown(value)}")
        parsed = parse(value)
        if parsed > high:
            raise Fault(f"{value!r} is more than any cell can have")
        return parsed

    return check


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text(item) for item in value]
    raise Fault(f"must be a list of texts, not {_shown(value)}")


def pairs(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise Fault(f"must map names to texts, not {_shown(value)}")
    converted = {}
    for key, item in value.items():
        if isinstance(item, bool):
            raise Fault(f"{key} is {item}; put it in quotes to say which text is meant")
        converted[str(key)] = text(item)
    return converted
