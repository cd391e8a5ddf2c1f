"""Text that others wrote, made fit for a terminal. Whatever a command prints for people goes through here.

It must never change what programs read as JSON.
"""

from __future__ import annotations

import unicodedata
from typing import Final

# Controls; formats, such as those that turn a line around or take no room; half characters; ends of lines.
_WRITTEN_OUT: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    r"""The text with what a terminal would obey or hide written out, as \x1b or \u202e; the rest as it is."""
    if text.isprintable():
        return text
    return "".join(
        _written(ord(char)) if unicodedata.category(char) in _WRITTEN_OUT else char for char in text
    )


def _written(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
