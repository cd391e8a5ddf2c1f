"""What a stream of submissions still owes: bounded, in order, sent again after a cut, nothing twice and nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.outbox import Outbox


def test_items_go_out_in_order_and_no_further_ahead_than_the_window() -> None:
    pulled: list[int] = []

    def source() -> Iterator[int]:
        for item in range(10):
            pulled.append(item)
            yield item

    outbox = Outbox(source(), window=3)
    stream = outbox.open()
    assert [next(stream), next(stream), next(stream)] == [0, 1, 2]
    blocked = threading.Thread(target=lambda: pulled.append(next(stream)), daemon=True)
    blocked.start()
    assert pulled == [0, 1, 2]
    assert outbox.answered() == 0
    blocked.join(timeout=20)
    assert pulled == [0, 1, 2, 3, 3]


def test_a_new_stream_begins_with_what_was_not_answered() -> None:
    outbox = Outbox(range(5), window=10)
    first = outbox.open()
    assert [next(first) for _ in range(4)] == [0, 1, 2, 3]
    assert outbox.answered() == 0
    assert list(outbox.open()) == [1, 2, 3, 4]
    assert list(first) == []


def test_what_the_source_raises_comes_after_the_answers() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise LookupError("line 2")

    outbox = Outbox(source(), window=10)
    assert list(outbox.open()) == [1]
    assert outbox.answered() == 1
    with pytest.raises(LookupError, match="line 2"):
        outbox.finish()


def test_closing_ends_a_stream_that_waits_for_room() -> None:
    outbox = Outbox(range(5), window=1)
    stream = outbox.open()
    next(stream)
    rest: list[int] = []
    reader = threading.Thread(target=lambda: rest.extend(stream), daemon=True)
    reader.start()
    outbox.close()
    reader.join(timeout=20)
    assert (reader.is_alive(), rest) == (False, [])


@given(st.integers(0, 60), st.integers(1, 8), st.lists(st.integers(0, 10), max_size=8))
def test_every_item_is_answered_once_in_order_whatever_is_cut(
    count: int, window: int, cuts: list[int]
) -> None:
    outbox = Outbox(range(count), window=window)
    answers: list[int] = []
    for cut in [*cuts, 10**6]:
        stream = outbox.open()
        for received, item in enumerate(stream):
            if received == cut:
                break  # The server took the item, and the answer was lost.
            assert outbox.answered() == item
            answers.append(item)
    assert answers == list(range(count))
