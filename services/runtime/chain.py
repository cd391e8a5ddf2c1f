"""The chain: what the digest of an entry covers, byte for byte. Changing anything here makes another log format.

digest = SHA-256(prev || header || body) over stored bytes. Protobuf is not canonical, so the body is hashed as it is
stored and the header is written out here; nothing is ever serialised again to be hashed.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

FORMAT: Final = 1
DIGEST_BYTES: Final = 32


def header_bytes(*, cell: str, term: int, at_ms: int) -> bytes:
    """Format and the length of the cell's name as u32, the name, the term as u64, the time as i64; big-endian."""
    name = cell.encode()
    return struct.pack(">II", FORMAT, len(name)) + name + struct.pack(">Qq", term, at_ms)


def entry_digest(*, prev: bytes, cell: str, term: int, at_ms: int, body: bytes) -> bytes:
    """What the next entry must name as its `prev`."""
    digest = hashlib.sha256(prev)
    digest.update(header_bytes(cell=cell, term=term, at_ms=at_ms))
    digest.update(body)
    return digest.digest()
