"""Inputs as they come off a topic: parsed, and held to what every decision relies on.

The gateway has validated what came through it; a leader does not rest on that, since others may write to a topic.
What fails here is parked, with the reason; what is legible but makes no sense is refused where it is decided.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message

from services.runtime import codec
from services.scheduler.draft import UnfitError

M = TypeVar("M", bound=Message)
V = TypeVar("V", bound=msgspec.Struct)

NAME_CHARS: Final = 256
# More than any duration that is meant, far below what arithmetic on times could overflow.
DURATION_MS_MAX: Final = 366 * 24 * 3_600_000


def parse(kind: type[M], stored: bytes) -> M:
    """The message; raises UnfitError."""
    try:
        return kind.FromString(stored)
    except DecodeError as error:
        raise UnfitError(f"not a {kind.DESCRIPTOR.name}: {error}") from error


def value(kind: type[V], message: Message) -> V:
    """A value that facts use, from its message; raises UnfitError when a word in it is missing or unknown."""
    try:
        return codec.decode_value(kind, message)
    except (codec.CodecError, codec.UnknownFactError) as error:
        raise UnfitError(f"{kind.__name__}: {error}") from error


def need(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - the condition itself
    """Park the input in hand unless the condition holds."""
    if not holds:
        raise UnfitError(otherwise)


def need_name(text: str, what: str) -> None:
    """A name must be there and must not be a document."""
    need(0 < len(text) <= NAME_CHARS, f"{what} is missing or longer than {NAME_CHARS}")
