"""Reads versions.env, the one place where versions of the stack are pinned. It decides none."""

from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("versions.env")


def parse(text: str) -> dict[str, str]:
    """KEY=VALUE lines; blank lines and # comments are passed over.

    Raises ValueError for any other line, and for a key that is given twice.
    """
    pinned: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.isidentifier() or not value:
            raise ValueError(f"line {number} is not KEY=VALUE: {line!r}")
        if key in pinned:
            raise ValueError(f"line {number} gives {key} a second time")
        pinned[key] = value
    return pinned


def pinned() -> dict[str, str]:
    """The versions of this checkout."""
    return parse(FILE.read_text())
