"""What the benchmarks of health feed and draw, without the minutes that measuring takes."""

from __future__ import annotations

import pytest

from bench import beats, detect
from services.runtime import topics
from tidemill.v1 import telemetry_pb2


def test_every_node_beats_once_a_period_in_batches_as_gateways_write_them() -> None:
    nodes, heard = 20_000, []
    for slot in range(beats._SLOTS):
        records, count = beats._slot(nodes, slot, 4)
        said = [telemetry_pb2.BeatBatch.FromString(record.value).beats for record in records]
        assert sum(map(len, said)) == count == nodes // beats._SLOTS
        assert max(map(len, said)) <= beats._BATCH_BEATS
        for record, batch in zip(records, said, strict=True):
            assert {topics.partition_of(beat.node.encode(), 4) for beat in batch} == {
                record.partition
            }
        heard += [beat.node for batch in said for beat in batch]
    assert len(heard) == len(set(heard)) == nodes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_NODES", 20)


def test_pauses_of_eight_seconds_lose_no_node(small: None) -> None:
    pauses = detect._Pauses(7, mean_ms=0).run(1)
    assert pauses.count > 500
    assert pauses.lost == 0


def test_longer_pauses_are_counted_when_they_lose_a_node(small: None) -> None:
    pauses = detect._Pauses(7, mean_ms=20_000).run(1)
    assert pauses.count > 300
    # Longer than 8.25 to 10.25 s: e^-0.41 to e^-0.51 of them.
    assert 0.5 < pauses.lost / pauses.count < 0.75


def test_the_same_seed_draws_the_same_history(small: None) -> None:
    first, second = (detect._Pauses(3, mean_ms=5_000).run(1) for _ in range(2))
    assert (first.count, first.lost) == (second.count, second.lost)
