"""What every Blobs keeps. A subclass gives `open_blobs`, which opens the same store again at each call."""

import hashlib
import os
from collections.abc import Callable
from typing import TypeAlias

import pytest

from services.runtime.ports import RECORD_BYTES_MAX, Blobs

OpenBlobs: TypeAlias = Callable[[], Blobs]


class BlobsContract:
    @pytest.fixture
    def open_blobs(self) -> OpenBlobs:
        raise NotImplementedError

    def test_blobs_are_named_by_their_digest_in_the_order_given(
        self, open_blobs: OpenBlobs
    ) -> None:
        contents = [b"", b"a", b"\0\xff" * 500_000]
        digests = open_blobs().put(contents)
        assert list(digests) == [hashlib.sha256(content).hexdigest() for content in contents]
        assert [open_blobs().get(digest) for digest in digests] == contents

    def test_the_largest_is_stored_among_others(self, open_blobs: OpenBlobs) -> None:
        largest = os.urandom(RECORD_BYTES_MAX)
        digests = open_blobs().put([b"a", largest, b"b"])
        assert [open_blobs().get(digest) for digest in digests] == [b"a", largest, b"b"]

    def test_storing_again_is_free(self, open_blobs: OpenBlobs) -> None:
        blobs = open_blobs()
        assert blobs.put([b"a", b"a"]) == blobs.put([b"a", b"a"])
        assert blobs.get(blobs.put([b"a"])[0]) == b"a"

    def test_an_unknown_one_is_none(self, open_blobs: OpenBlobs) -> None:
        assert open_blobs().get("0" * 64) is None

    def test_a_deleted_one_is_forgotten_and_can_be_stored_again(
        self, open_blobs: OpenBlobs
    ) -> None:
        blobs = open_blobs()
        digest, other = blobs.put([b"secret", b"other"])
        blobs.delete(digest)
        blobs.delete(digest)
        assert open_blobs().get(digest) is None
        assert blobs.get(other) == b"other"
        assert list(blobs.put([b"secret"])) == [digest]
        assert blobs.get(digest) == b"secret"

    def test_no_blobs_are_no_error(self, open_blobs: OpenBlobs) -> None:
        assert list(open_blobs().put([])) == []
