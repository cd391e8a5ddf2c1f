"""The tokens file as it is now: read again when it changed, so that a token is revoked without a restart.

A file that cannot be used changes nothing but a log line: a slip of an editor must not lock everyone out, and what was
revoked before stays revoked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from services.runtime.ports import Clock
from services.runtime.tokens import Grantee, TokensError, parse_tokens

LOOK_EVERY_MS: Final = 1_000


class TokensFile:
    """`grantees` is called at every call; `troubled` is told what is wrong with the file, once a change."""

    def __init__(self, path: Path, clock: Clock, *, troubled: Callable[[str], None]) -> None:
        """Read it; raises TokensError."""
        self._path = path
        self._clock = clock
        self._troubled = troubled
        self._looked_ms = clock.monotonic_ms()
        self._seen = self._stamp()
        self._grantees = self._read()

    def grantees(self) -> Mapping[str, Grantee]:
        """By token digest; at most LOOK_EVERY_MS old."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms >= LOOK_EVERY_MS:
            self._looked_ms = now_ms
            self._look()
        return self._grantees

    def _look(self) -> None:
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._grantees = self._read()
        except TokensError as error:
            self._troubled(str(error))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> Mapping[str, Grantee]:
        try:
            return parse_tokens(self._path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise TokensError(f"{self._path}: cannot be read ({error})") from error
        except TokensError as error:
            raise TokensError(f"{self._path}, {error}") from error
