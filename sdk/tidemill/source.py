"""Reads job and queue files (YAML, TOML, JSON lines) into plain values that remember where each key stood.

It must never know what a key means; schema.py does.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tidemill.errors import UsageError

Place: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One mapping of a file. `lines` holds (line, column) of keys, as far as the format tells."""

    name: str
    value: Mapping[str, Any]
    lines: Mapping[Place, tuple[int, int]] = field(default_factory=dict)

    def where(self, place: Place) -> str:
        """Such as job.yaml:7:3, for a key or for the nearest above it that has a position."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.lines:
                line, column = self.lines[place[:length]]
                return f"{self.name}:{line}:{column}"
        return self.name


class FileError(UsageError):
    """A file of the user is wrong. `problems` holds each fault with its position."""

    def __init__(self, what: str, problems: list[str], *, next_command: str = "") -> None:
        super().__init__(what, why="\n".join(problems), next_command=next_command)
        self.problems = problems


def read_documents(path: Path) -> list[Document]:
    """The documents of a .yaml, .yml, .toml or .json file; YAML may hold several. Raises FileError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot read {path}", [str(error.strerror)]) from error
    except UnicodeDecodeError as error:
        raise FileError(f"cannot read {path}", [f"it is not UTF-8 text: {error.reason}"]) from error
    match path.suffix.lower():
        case ".yaml" | ".yml" | ".json":
            return list(_yaml_documents(str(path), text))
        case ".toml":
            return [_toml_document(str(path), text)]
        case _:
            pass
    raise FileError(
        f"cannot tell what {path} is", ["its name must end in .yaml, .yml, .toml or .json"]
    )


def read_json_line(name: str, number: int, line: str) -> Document:
    """One line of JSON lines. Raises FileError with the position."""
    try:
        value = json.loads(line)
    except ValueError as error:
        problem = f"{name}:{number}:{getattr(error, 'colno', 1)}: {getattr(error, 'msg', error)}"
        raise FileError(f"{name} holds a line that is not JSON", [problem]) from error
    if not isinstance(value, dict):
        raise FileError(
            f"{name} holds a line that is no job", [f"{name}:{number}:1: not an object"]
        )
    return Document(name, value, {(): (number, 1)})


def _yaml_documents(name: str, text: str) -> Iterator[Document]:
    import yaml

    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            lines: dict[Place, tuple[int, int]] = {}
            value = _yaml_value(node, (), lines, name)
            if not isinstance(value, dict):
                raise FileError(f"{name} is no mapping", [f"{name}:1:1: write key: value lines"])
            yield Document(name, value, lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise FileError(f"{name} is not valid YAML", [f"{where}: {error.problem}"]) from error
    except yaml.YAMLError as error:
        raise FileError(f"{name} is not valid YAML", [f"{name}: {error}"]) from error


def _yaml_value(node: Any, place: Place, lines: dict[Place, tuple[int, int]], name: str) -> Any:
    import yaml

    lines.setdefault(place, (node.start_mark.line + 1, node.start_mark.column + 1))
    match node:
        case yaml.MappingNode():
            mapping: dict[str, Any] = {}
            for key, value in node.value:
                below = (*place, str(key.value))
                at = (key.start_mark.line + 1, key.start_mark.column + 1)
                if str(key.value) in mapping:
                    problem = f"{name}:{at[0]}:{at[1]}: {key.value!r} is given twice"
                    raise FileError(f"{name} is ambiguous", [problem])
                lines[below] = at
                mapping[str(key.value)] = _yaml_value(value, below, lines, name)
            return mapping
        case yaml.SequenceNode():
            return [
                _yaml_value(item, (*place, i), lines, name) for i, item in enumerate(node.value)
            ]
        case _:
            return yaml.SafeLoader("").construct_object(node)


def _toml_document(name: str, text: str) -> Document:
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f"{name}:{at[1]}:{at[2]}" if at else name
        message = re.sub(r" \(at .*\)$", "", str(error))
        raise FileError(f"{name} is not valid TOML", [f"{where}: {message}"]) from error
    return Document(name, value, _toml_lines(text))


def _toml_lines(text: str) -> dict[Place, tuple[int, int]]:
    """Positions of tables and keys written one a line; tomllib itself tells none."""
    lines: dict[Place, tuple[int, int]] = {(): (1, 1)}
    table: Place = ()
    arrays: dict[Place, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        column = len(line) - len(line.lstrip()) + 1
        if header := re.fullmatch(r"\[\[([^\[\]]+)\]\]\s*(#.*)?", stripped):
            name = _toml_key(header[1])
            arrays[name] = arrays.get(name, -1) + 1
            lines.setdefault(name, (number, column))
            table = (*name, arrays[name])
            lines[table] = (number, column)
        elif header := re.fullmatch(r"\[([^\[\]]+)\]\s*(#.*)?", stripped):
            table = _toml_key(header[1])
            lines.setdefault(table, (number, column))
        elif key := re.match(r"([A-Za-z0-9_.\-\"' ]+?)\s*=", stripped):
            lines.setdefault((*table, *_toml_key(key[1])), (number, column))
    return lines


def _toml_key(text: str) -> Place:
    return tuple(part.strip().strip("\"'") for part in text.split("."))
