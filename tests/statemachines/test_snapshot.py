"""Snapshots: the same bytes on every reader, and nothing is lost on the way back."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from statemachines import snapshot
from statemachines.cluster import Cluster
from statemachines.snapshot import DamagedSnapshotError
from tests.statemachines.tour import tour
from tests.statemachines.world import CELL


def every_field(cluster: Cluster) -> dict[str, Any]:
    """All state, derived state too, with the order of every mapping."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return [(key, plain(each)) for key, each in value.items()]
        slots = getattr(type(value), "__slots__", None)
        if slots and type(value).__module__ == "statemachines.usage":
            return [(name, plain(getattr(value, name))) for name in slots]
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        return value

    return {
        name: plain(value)
        for name, value in vars(cluster).items()
        if name not in {"_touched", "voided"}
    }


def test_at_every_entry_what_is_decoded_is_what_was_encoded_and_goes_on_as_it() -> None:
    told = tour()
    whole = Cluster(CELL)
    for at, entry in enumerate(told.entries):
        assert whole.fold(entry)
        data = snapshot.encode(whole)
        decoded = snapshot.decode(data, offset=whole.offset)
        assert every_field(decoded) == every_field(whole)
        assert snapshot.encode(decoded) == data
        for later in told.entries[at + 1 :]:
            assert decoded.fold(later)
        assert every_field(decoded) == every_field(told.cluster)


def test_the_digest_is_the_hash_of_the_encoding_and_of_nothing_else() -> None:
    cluster = tour().cluster
    assert snapshot.digest(cluster) == hashlib.sha256(snapshot.encode(cluster)).digest()
    cluster.skip(cluster.offset + 7)  # Where the log keeps its records is no part of the state.
    assert snapshot.digest(cluster) == snapshot.digest(tour().cluster)


def test_a_decoded_cluster_tracks_only_when_asked() -> None:
    cluster = tour().cluster
    data = snapshot.encode(cluster)
    assert not snapshot.decode(data, offset=1, track=True).take_touched().jobs
    with pytest.raises(AssertionError, match="track=True"):
        snapshot.decode(data, offset=1).take_touched()


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_damaged_bytes_are_told_apart_from_a_state(cut: int) -> None:
    data = snapshot.encode(tour().cluster)
    with pytest.raises(DamagedSnapshotError, match="snapshot at offset 5"):
        snapshot.decode(data[:cut], offset=5)
