"""How long bad weather is borne: tried again, longer apart each time, until patience ends. It never sleeps itself."""

from __future__ import annotations

import time
from typing import Final

from services.health.metrics import Observer
from services.runtime.exits import ExitCode, exit_code_of
from services.runtime.ports import PortError
from services.runtime.streams import StreamsEndedError

_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 2.0


class Patience:
    """Of one process with its weather."""

    def __init__(self, observer: Observer, patience_s: int) -> None:
        self._observer = observer
        self._patience_s = patience_s
        self.well()

    def well(self) -> None:
        """A turn went well."""
        self._observer.turned()
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
        self._observer.failing(error)
        backoff_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, _BACKOFF_MAX_S)
        return backoff_s
