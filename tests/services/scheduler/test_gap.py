"""What `tidemilld gap accept` accepts: a gap that is there, up to where inputs are kept."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import pytest

from services.runtime.ports import InputGapError, InputRecord, Outgoing
from services.runtime.settings import SettingsError
from services.scheduler.gap import said
from statemachines.cluster import Cluster
from statemachines.facts import InputGapAccepted
from tests.fakes.memory import MemoryCell, MemoryInputs, MemoryPublisher


class Ending(MemoryInputs):
    """Says of a position behind the end that it is not there, as a broker does."""

    def read(
        self, positions: Mapping[tuple[str, int], int], *, limit: int, timeout_s: float
    ) -> Sequence[InputRecord]:
        for key, position in positions.items():
            if position > self.end(*key):
                raise InputGapError(*key, position, self._cell.oldest[key])
        return super().read(positions, limit=limit, timeout_s=timeout_s)


def accepted(
    *, kept_from: int, offset: int, made_anew: bool = False, decided_to: int = 2
) -> InputGapAccepted:
    """Of a topic of six records."""
    cell = MemoryCell()
    MemoryPublisher(cell).publish([Outgoing("requests", b"", b"x")] * 6)
    cell.drop("requests", 0, before=kept_from)
    cluster = Cluster("test")
    cluster.positions["requests", 0] = decided_to
    given = argparse.Namespace(
        topic="requests", partition=0, offset=offset, message="why", made_anew=made_anew
    )
    (recorded,) = said(given, cluster, Ending(cell))
    assert isinstance(recorded.fact, InputGapAccepted)
    return recorded.fact


def test_a_gap_is_accepted_up_to_what_is_kept() -> None:
    assert accepted(kept_from=4, offset=4) == InputGapAccepted("requests", 0, 2, 4, "why")


@pytest.mark.parametrize("offset", [3, 5, 40])
def test_an_offset_that_would_skip_what_is_kept_is_refused(offset: int) -> None:
    with pytest.raises(SettingsError, match=r"the oldest input that is there is 4.*give that"):
        accepted(kept_from=4, offset=offset)


@pytest.mark.parametrize("offset", [0, 2, 5])
def test_without_a_gap_nothing_is_skipped(offset: int) -> None:
    with pytest.raises(SettingsError, match="nothing needs skipping"):
        accepted(kept_from=0, offset=offset)


def test_a_topic_that_was_made_anew_is_decided_from_its_beginning() -> None:
    assert accepted(kept_from=0, offset=0, made_anew=True).to_offset == 0
    assert accepted(kept_from=1, offset=1, made_anew=True).to_offset == 1
    with pytest.raises(SettingsError, match="the oldest input that is there is 0"):
        accepted(kept_from=0, offset=2, made_anew=True)


@pytest.mark.parametrize("offset", [0, 4, 6, 9])
def test_going_back_is_refused_unless_the_topic_was_made_anew(offset: int) -> None:
    """A partition that lost its end ends before the position too, and what it kept was decided."""
    with pytest.raises(
        SettingsError, match=r"ends before 9.*--made-anew.*from 4 on would be decided twice"
    ):
        accepted(kept_from=4, offset=offset, decided_to=9)
    back = accepted(kept_from=4, offset=4, decided_to=9, made_anew=True)
    assert (back.from_offset, back.to_offset) == (9, 4)
