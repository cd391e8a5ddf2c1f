"""Tokens and keys: what a tokens file may say, what a job token proves, and files that are made once."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from services.runtime.tokens import (
    Grantee,
    Role,
    TokensError,
    check_job_token,
    job_token,
    parse_tokens,
    prepare_keys,
    read_key,
    token_digest,
    token_line,
)

KEY = b"k" * 32
ALICE = Grantee("user:alice", frozenset({Role.USER, Role.VIEWER}))
AGENT = Grantee("node:n1", frozenset({Role.NODE}), frozenset({"n1", "n2"}))
DIGEST = "0" * 64


@pytest.mark.parametrize("grantee", [ALICE, AGENT], ids=["alice", "agent"])
def test_a_line_that_is_written_is_read_again(grantee: Grantee) -> None:
    assert parse_tokens(token_line("secret", grantee)) == {token_digest("secret"): grantee}


def test_comments_and_empty_lines_say_nothing() -> None:
    assert parse_tokens("# hello\n\n   \n" + token_line("t", ALICE) + "# end") == {
        token_digest("t"): ALICE
    }


@pytest.mark.parametrize(
    "line",
    [
        "secret user:alice admin",
        f"{DIGEST} user:alice",
        f"{DIGEST} alice admin",
        f"{DIGEST} user:al/ice admin",
        f"{DIGEST} user:{'a' * 57} admin",
        f"{DIGEST} user:alice root",
        f"{DIGEST} user:alice admin nodes=n1",
        f"{DIGEST} user:alice node hosts=n1",
        f"{DIGEST} user:alice node nodes=n1 more",
        f"{DIGEST.replace('0', 'g')} user:alice admin",
    ],
)
def test_a_line_that_is_not_understood_is_named(line: str) -> None:
    with pytest.raises(TokensError, match="line 2: "):
        parse_tokens(f"# first\n{line}\n")


def test_the_token_itself_is_not_in_the_file() -> None:
    assert "secret" not in token_line("secret", ALICE)


@pytest.mark.parametrize("job", ["abcdefghijkl", "abcdefghijkl_17"])
def test_a_job_token_proves_its_job_and_attempt(job: str) -> None:
    assert check_job_token(KEY, job_token(KEY, job, 3)) == (job, 3)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "tmj",
        "tmj.a.1.",
        job_token(b"z" * 32, "a", 1),
        job_token(KEY, "a", 1).replace(".1.", ".2."),
        job_token(KEY, "a", 1).replace(".a.", ".b."),
        job_token(KEY, "a", 1) + "0",
        job_token(KEY, "a", 1).upper(),
        "tmj.a.99999999999999999999." + "0" * 64,
        "tmj.a.-1." + "0" * 64,
        "tmj.a.\u0661." + "0" * 64,
        "é.a.1." + "0" * 64,
    ],
)
def test_anything_else_proves_nothing(token: str) -> None:
    assert check_job_token(KEY, token) is None


def test_keys_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    first = prepare_keys(tmp_path)
    again = prepare_keys(tmp_path)
    secrets = [first.admin_token, first.node_token, tmp_path / "keys" / "cell.key"]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (*secrets, first.tokens)}
    assert (first, modes, len(first.cell_key)) == (again, {0o600}, 32)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_the_tokens_that_are_made_are_in_the_tokens_file(tmp_path: Path) -> None:
    keys = prepare_keys(tmp_path)
    known = parse_tokens(keys.tokens.read_text())
    admin = known[token_digest(keys.admin_token.read_text().strip())]
    node = known[token_digest(keys.node_token.read_text().strip())]
    assert (admin.roles, node.roles) == (frozenset({Role.ADMIN}), frozenset({Role.NODE}))


def test_a_tokens_file_of_an_operator_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# mine\n")
    prepare_keys(tmp_path)
    assert (tmp_path / "tokens").read_text() == "# mine\n"


def test_nothing_half_written_is_left_behind(tmp_path: Path) -> None:
    prepare_keys(tmp_path)
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["cell.key", "node.token", "token", "tokens"]


@pytest.mark.parametrize("name", ["keys/cell.key", "keys/node.token", "token"])
@pytest.mark.parametrize("left", ["", "\n"])
def test_a_secret_that_was_lost_is_not_taken_for_one(tmp_path: Path, name: str, left: str) -> None:
    prepare_keys(tmp_path)
    (tmp_path / name).write_text(left)
    with pytest.raises(TokensError, match=name):
        prepare_keys(tmp_path)


@pytest.mark.parametrize("content", ["", "zz", "00" * 31, "00" * 33])
def test_a_key_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(TokensError):
        read_key(path)


def test_a_key_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokensError, match="64 hex"):
        read_key(tmp_path / "nothing")
