"""How long bad weather is borne: tried again, longer apart each time, until patience ends. It never sleeps itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from services.runtime.exits import ExitCode, exit_code_of
from services.runtime.ports import PortError
from services.runtime.streams import StreamsEndedError

_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 5.0


class Patience:
    """Of one process with its weather. `failing` is told of each failure that is borne."""

    def __init__(self, patience_s: int, failing: Callable[[PortError], None]) -> None:
        self._patience_s = patience_s
        self._failing = failing
        self.well()

    def well(self) -> None:
        """A turn went well."""
        self._failing_since, self._backoff_s = 0.0, _BACKOFF_FIRST_S

    def failed(self, error: PortError) -> float:
        """How long to wait before the next try, in seconds; raises the error when it is no weather, or lasts too long."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        lasting = now - self._failing_since > self._patience_s
        if (
            lasting
            or isinstance(error, StreamsEndedError)
            or exit_code_of(error) is not ExitCode.UNAVAILABLE
        ):
            raise error
        self._failing(error)
        backoff_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, _BACKOFF_MAX_S)
        return backoff_s
