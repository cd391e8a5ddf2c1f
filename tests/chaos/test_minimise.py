"""The minimiser keeps what is needed and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from chaos.minimise import ddmin, kinds


@given(st.lists(st.integers(0, 30), unique=True, max_size=25), st.data())
def test_ddmin_finds_exactly_what_is_needed(items: list[int], data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.sampled_from(items)) if items else st.just(set()))

    def holds(kept: Sequence[int]) -> bool:
        return needed <= set(kept)

    assert set(ddmin(items, holds)) == needed


def test_what_is_broken_is_known_by_its_letter() -> None:
    assert kinds(("A: device 0", "bug: n1 raised", "check: expected")) == {"A", "bug"}


def test_checks_are_known_by_what_they_expect() -> None:
    first = "check: expected at most 0 of [NodeLost], saw 1 at 2.0 s: nobody died"
    again = "check: expected at most 0 of [NodeLost], saw 3 at 1.0 s: nobody died"
    other = "check: expected at least 1 of [NodeLost], saw 0: it died"
    assert kinds((first,)) == kinds((again,))
    assert not kinds((first,)) & kinds((other,))
