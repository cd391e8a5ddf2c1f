"""The digest covers prev, every field of the header, and the body, in exactly the documented bytes."""

import hashlib

import pytest

from services.runtime import chain
from statemachines.entry import GENESIS


def test_the_header_is_written_as_documented() -> None:
    assert chain.header_bytes(cell="cé", term=258, at_ms=-2) == bytes.fromhex(
        "00000001" "00000003" "63c3a9" "0000000000000102" "fffffffffffffffe"
    )  # fmt: skip


def test_the_digest_is_over_prev_header_and_body() -> None:
    header = chain.header_bytes(cell="c", term=1, at_ms=2)
    assert (
        chain.entry_digest(prev=GENESIS, cell="c", term=1, at_ms=2, body=b"body")
        == hashlib.sha256(GENESIS + header + b"body").digest()
    )


@pytest.mark.parametrize(
    "change", [{"prev": b"\1" * 32}, {"cell": "d"}, {"term": 2}, {"at_ms": 3}, {"body": b"b"}]
)
def test_no_part_can_change_unseen(change: dict[str, object]) -> None:
    said: dict[str, object] = {"prev": GENESIS, "cell": "c", "term": 1, "at_ms": 2, "body": b""}
    assert chain.entry_digest(**said) != chain.entry_digest(**said | change)  # type: ignore[arg-type]
