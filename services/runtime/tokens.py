"""Tokens: how a caller proves who it is, and the keys and files of a cell that hold them.

A tokens file has one line a token: SHA-256 of the token in hex, principal, roles by comma, and for a node token
optionally `nodes=A,B`, the only ones it may attach. The token itself is in no file of the gateway. A job token is
computed, never stored: HMAC-SHA-256 of the cell's key over "job", job and attempt, so any gateway can check it.
This must never log or return a secret, or compare one in a way whose time tells how much of it was right.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from enum import StrEnum, unique
from pathlib import Path
from typing import Final

import msgspec

# In the cell's directory.
TOKENS_FILE: Final = "tokens"
# The admin's token, for `tidemill` on this machine.
ADMIN_TOKEN_FILE: Final = "token"  # noqa: S105 - a file name
KEYS_DIRECTORY: Final = "keys"
CELL_KEY_FILE: Final = "cell.key"
NODE_TOKEN_FILE: Final = "node.token"  # noqa: S105 - a file name
# With a request id of at most 256 characters and a slash it fits in Request.request.
_PRINCIPAL: Final = re.compile(r"[a-z]+:[A-Za-z0-9._@-]{1,56}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_JOB_TOKEN: Final = "tmj"  # noqa: S105 - what such tokens begin with
_ACCOUNT_KEY: Final = "tma"


@unique
class Role(StrEnum):
    """What a token may be used for."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"
    NODE = "node"


class Grantee(msgspec.Struct, frozen=True):
    """Who a token stands for; `nodes` empty means any node."""

    principal: str
    roles: frozenset[Role]
    nodes: frozenset[str] = frozenset()


class TokensError(Exception):
    """A tokens file that cannot be used; the message names the line and what it should be."""


def token_digest(token: str) -> str:
    """What a tokens file holds of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_line(token: str, grantee: Grantee) -> str:
    """The line of a tokens file for this token."""
    words = [token_digest(token), grantee.principal, ",".join(sorted(grantee.roles))]
    if grantee.nodes:
        words.append("nodes=" + ",".join(sorted(grantee.nodes)))
    return " ".join(words) + "\n"


def parse_tokens(text: str) -> Mapping[str, Grantee]:
    """Grantees by token digest; raises TokensError at the first line that is not understood."""
    grantees: dict[str, Grantee] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if words:
            digest, grantee = _parse_line(number, words)
            grantees[digest] = grantee
    return grantees


def _parse_line(number: int, words: list[str]) -> tuple[str, Grantee]:
    if len(words) not in {3, 4} or not _DIGEST.fullmatch(words[0]):
        raise TokensError(f"line {number}: want `SHA256HEX PRINCIPAL ROLES [nodes=A,B]`")
    if not _PRINCIPAL.fullmatch(words[1]):
        raise TokensError(f"line {number}: principal {words[1]!r} is not like `user:alice`")
    try:
        roles = frozenset(Role(role) for role in words[2].split(","))
    except ValueError:
        known = ", ".join(Role)
        raise TokensError(f"line {number}: roles {words[2]!r} are not among {known}") from None
    nodes: frozenset[str] = frozenset()
    if len(words) == 4:
        if not words[3].startswith("nodes=") or Role.NODE not in roles:
            raise TokensError(f"line {number}: {words[3]!r} is only `nodes=A,B`, with role node")
        nodes = frozenset(words[3].removeprefix("nodes=").split(","))
    return words[0], Grantee(words[1], roles, nodes)


# --- tokens of attempts


def job_token(key: bytes, job: str, attempt: int) -> str:
    """The token of one attempt of one job; opaque to everyone but a gateway."""
    proof = hmac.digest(key, f"job\0{job}\0{attempt}".encode(), "sha256").hex()
    return f"{_JOB_TOKEN}.{job}.{attempt}.{proof}"


def check_job_token(key: bytes, token: str) -> tuple[str, int] | None:
    """(job, attempt) that the token proves; None when it proves nothing."""
    words = token.split(".")
    if len(words) != 4 or words[0] != _JOB_TOKEN or not words[2].isdecimal() or len(words[2]) > 9:
        return None
    job, attempt = words[1], int(words[2])
    honest = hmac.compare_digest(token.encode(), job_token(key, job, attempt).encode())
    return (job, attempt) if honest else None


# --- keys of accounts that write to topics by themselves


def account_key(key: bytes, principal: str) -> str:
    """The key with which a service account signs what it writes by itself; opaque to everyone but a gateway.

    Raises TokensError for a name that no tokens file could hold.
    """
    if not _PRINCIPAL.fullmatch(principal):
        raise TokensError(f"principal {principal!r} is not like `service:ci`")
    proof = hmac.digest(key, f"account\0{principal}".encode(), "sha256").hex()
    return f"{_ACCOUNT_KEY}.{principal}.{proof}"


# --- files of a cell


class CellKeys(msgspec.Struct, frozen=True):
    """What `prepare_keys` answers with: paths for other programs, and the key for the gateway itself."""

    cell_key: bytes
    tokens: Path
    admin_token: Path
    node_token: Path


def prepare_keys(directory: Path) -> CellKeys:
    """Make what the cell's directory lacks of key, tokens and tokens file; what is there stays as it is.

    Safe to call from several processes at once, and after a crash of the machine at any moment. Raises TokensError for a
    secret that is there and is none.
    """
    keys = directory / KEYS_DIRECTORY
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    tokens = directory / TOKENS_FILE
    key = keys / CELL_KEY_FILE
    _create(key, secrets.token_hex(32) + "\n")
    cell_key = read_key(key)
    admin, node = directory / ADMIN_TOKEN_FILE, keys / NODE_TOKEN_FILE
    lines = [
        token_line(_token(admin), Grantee("user:admin", frozenset({Role.ADMIN}))),
        token_line(_token(node), Grantee("service:agent", frozenset({Role.NODE}))),
    ]
    _create(tokens, "# sha256(token) principal roles [nodes=A,B]\n" + "".join(lines))
    return CellKeys(cell_key, tokens, admin, node)


def read_key(path: Path) -> bytes:
    """The cell's key: 64 hex characters; raises TokensError."""
    try:
        key = bytes.fromhex(path.read_text("ascii").strip())
    except (OSError, ValueError) as error:
        raise TokensError(
            f"{path}: no key can be read ({error}); want 64 hex characters"
        ) from error
    if len(key) != 32:
        raise TokensError(
            f"{path}: the key has {len(key)} bytes, not 32. Restore the file; without it every job token is void: "
            "delete it to have another key made"
        )
    return key


def _token(path: Path) -> str:
    """The token in the file, which is made if it does not exist; raises TokensError."""
    _create(path, secrets.token_hex(32) + "\n")
    token = path.read_text("utf-8").strip()
    if not token:
        raise TokensError(
            f"{path} holds no token. Restore it, or delete it and the file `{TOKENS_FILE}`: both are made anew"
        )
    return token


def _create(path: Path, content: str) -> None:
    """Whole and durable or not at all, readable by the owner alone; an existing file wins."""
    if path.exists():
        return
    with _private_file(path) as scratch:
        with scratch.open("w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # Else a power cut leaves the name, and nothing in it.
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _private_file(beside: Path) -> Iterator[Path]:
    scratch = beside.with_name(f".{beside.name}.{secrets.token_hex(8)}")
    scratch.touch(mode=0o600, exist_ok=False)
    try:
        yield scratch
    finally:
        scratch.unlink()
