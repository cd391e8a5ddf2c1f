"""The tokens file as it is now: looked at once a second, and kept as it was when it is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.gateway.credentials import LOOK_EVERY_MS, TokensFile
from services.runtime.tokens import Grantee, Role, TokensError, token_digest, token_line

ALICE = Grantee("user:alice", frozenset({Role.USER}))
BOB = Grantee("user:bob", frozenset({Role.USER}))
BOTH = {token_digest("a"): ALICE, token_digest("b"): BOB}


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ms = 0

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


class Kept:
    """A file that holds both, and who reads it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "tokens"
        self.path.write_text(token_line("a", ALICE) + token_line("b", BOB))
        self.clock = Clock()
        self.troubles: list[str] = []
        self.file = TokensFile(self.path, self.clock, troubled=self.troubles.append)

    def later(self) -> dict[str, Grantee]:
        self.clock.now_ms += LOOK_EVERY_MS
        return dict(self.file.grantees())


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_a_token_that_is_taken_out_is_known_for_a_second_at_most(kept: Kept) -> None:
    kept.path.write_text(token_line("a", ALICE))
    kept.clock.now_ms += LOOK_EVERY_MS - 1
    assert kept.file.grantees() == BOTH
    kept.clock.now_ms += 1
    assert kept.file.grantees() == {token_digest("a"): ALICE}


@pytest.mark.parametrize("content", [b"what is this\n", b"\xff\xfe"])
def test_a_file_that_is_broken_changes_nothing_and_is_told_once(kept: Kept, content: bytes) -> None:
    kept.path.write_bytes(content)
    assert (kept.later(), kept.later(), len(kept.troubles)) == (BOTH, BOTH, 1)
    assert str(kept.path) in kept.troubles[0]


def test_a_file_that_is_gone_changes_nothing_until_it_is_back(kept: Kept) -> None:
    kept.path.unlink()
    gone = kept.later()
    kept.path.write_text(token_line("b", BOB))
    assert (gone, kept.later()) == (BOTH, {token_digest("b"): BOB})


def test_at_the_start_it_must_be_whole(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("what is this\n")
    with pytest.raises(TokensError, match="line 1"):
        TokensFile(tmp_path / "tokens", Clock(), troubled=lambda _: None)
