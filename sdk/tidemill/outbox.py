"""What a stream of submissions still owes: sent and not answered, in order, bounded.

A lost connection sends the unanswered again, under the same request ids. It must never know gRPC.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Outbox(Generic[Item]):
    """Pulls from `source`, one reader at a time, never more than `window` ahead of the answers."""

    def __init__(self, source: Iterable[Item], *, window: int) -> None:
        self._source = iter(source)
        self._window = window
        self._changed = threading.Condition()
        self._unanswered: deque[Item] = deque()
        self._sent = 0
        self._stream = 0
        self._pulling = False
        self._drained = False
        self._failure: BaseException | None = None

    def open(self) -> Iterator[Item]:
        """The items for a new stream, the unanswered first; an earlier stream's iterator ends."""
        with self._changed:
            self._stream += 1
            self._sent = 0
            self._changed.notify_all()
            stream = self._stream
        return self._items(stream)

    def answered(self) -> Item:
        """Takes out the oldest sent item: its answer has come."""
        with self._changed:
            self._sent -= 1
            self._changed.notify_all()
            return self._unanswered.popleft()

    def finish(self) -> None:
        """After the last answer: raises what the source raised, if it did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Ends the iterator of the open stream."""
        with self._changed:
            self._stream += 1
            self._changed.notify_all()

    def _items(self, stream: int) -> Iterator[Item]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_work(stream))
                if stream != self._stream:
                    return
                if self._sent < len(self._unanswered):
                    item = self._unanswered[self._sent]
                    self._sent += 1
                elif self._drained:
                    return
                else:
                    self._pulling = True
                    item = None
            if item is None:
                self._pull()
            else:
                yield item

    def _has_work(self, stream: int) -> bool:
        if stream != self._stream or self._sent < len(self._unanswered) or self._drained:
            return True
        return not self._pulling and len(self._unanswered) < self._window

    def _pull(self) -> None:
        """Take one item from the source without holding the lock: it may wait for a terminal or a pipe."""
        pulled: list[Item] = []
        failure: BaseException | None = None
        try:
            pulled = [next(self._source)]
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001  # raised again by finish(), to the caller's thread
            failure = error
        with self._changed:
            self._pulling = False
            self._unanswered.extend(pulled)
            self._drained = not pulled
            self._failure = failure
            self._changed.notify_all()
