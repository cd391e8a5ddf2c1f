"""Which version of the state is on disk. It never writes: the core hands out versions, the driver stores them.

One write is under way at a time, and covers every change made before it began.
"""

from __future__ import annotations


class Journal:
    """Versions count from 1; version 1 is the state as the agent begins."""

    def __init__(self, *, again_ms: int) -> None:
        self.version = 1
        self.stored = 0
        self._writing = 0
        self._again_ms = again_ms
        self._not_before_ms = 0

    def change(self) -> int:
        """Something that must survive a restart changed; the version that will have it."""
        if self.version in {self.stored, self._writing}:
            self.version += 1
        return self.version

    def holds(self, version: int) -> bool:
        """Whether that version is on disk."""
        return self.stored >= version

    def wait_ms(self, mono_ms: int) -> int | None:
        """Until a write should begin; None while there is nothing to write, or one is under way."""
        if self.version == self.stored or self._writing:
            return None
        return max(self._not_before_ms - mono_ms, 0)

    def begin(self) -> int:
        """The newest version is being written."""
        self._writing = self.version
        return self._writing

    def written(self, version: int) -> None:
        """It is on disk."""
        self._writing, self.stored = 0, version

    def failed(self, mono_ms: int) -> None:
        """It is not; the newest version is tried again after a while."""
        self._writing, self._not_before_ms = 0, mono_ms + self._again_ms
