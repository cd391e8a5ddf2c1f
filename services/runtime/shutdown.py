"""How a process is asked to end: SIGTERM or SIGINT asks it to drain, a second one ends it at once.

Threads wait here instead of sleeping; an event loop adds its own callback. It never ends a process that drains.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """Whether this process was asked to end. `install` once, from the main thread."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def install(self) -> None:
        """Take over the signals."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    @property
    def asked(self) -> bool:
        """Drain and end."""
        return self._asked.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until asked to end or for that long; whether asked."""
        return self._asked.wait(timeout_s)

    def on_ask(self, callback: Callable[[], None]) -> None:
        """Call it when asked; it must only wake someone up, for it runs inside a signal handler."""
        self._callbacks.append(callback)
        if self.asked:
            callback()

    def ask(self) -> None:
        """As if a signal had come."""
        if not self._asked.is_set():
            self._asked.set()
            for callback in self._callbacks:
                callback()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            # A person is in a hurry: end as the signal would have ended us.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.ask()
