"""Whether a record of progress was written by who it is about: asked of every record where programs may write them.

The gateways' records carry a proof too, so nobody passes for one. Refused are records without a proof, with a wrong one, of
long ago, and of before the newest of the same rank: an old record, sent again, could make a hung job look alive. It judges
no job, and keeps no secret but the cell's key.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from services.runtime.tokens import job_token
from tidemill.kafka.records import progress_proof
from tidemill.v1 import telemetry_pb2

# How far the clock of a producer may be off, and so for how long its record can be sent again to one who restarted.
FRESH_MS: Final = 300_000
# Gateways have clocks of their own, and a rank may go from one to the other.
_ORDER_MS: Final = 5_000
_RANKS_MAX: Final = 1_000_000


class Proofs:
    """Remembers the newest record of each rank. `refused` is told why of each that is refused."""

    def __init__(self, cell_key: bytes, refused: Callable[[str], None]) -> None:
        self._key = cell_key
        self._refused = refused
        self._newest: OrderedDict[tuple[str, int, int], int] = OrderedDict()

    def admit(self, said: telemetry_pb2.Progress, now_ms: int) -> bool:
        """Whether to believe it; `now_ms` is wall clock."""
        why = self._why_not(said, now_ms)
        if why:
            self._refused(why)
        return not why

    def _why_not(self, said: telemetry_pb2.Progress, now_ms: int) -> str:
        if not said.token:
            return "unproven"
        honest = progress_proof(job_token(self._key, said.job, said.attempt), said)
        if not hmac.compare_digest(honest.encode(), said.token.encode()):
            return "forged"
        if abs(now_ms - said.at_ms) > FRESH_MS:
            return "expired"
        rank = (said.job, said.attempt, said.rank)
        newest_ms = self._newest.pop(rank, said.at_ms)
        self._newest[rank] = max(newest_ms, said.at_ms)
        if len(self._newest) > _RANKS_MAX:
            self._newest.popitem(last=False)
        return "replayed" if said.at_ms < newest_ms - _ORDER_MS else ""
