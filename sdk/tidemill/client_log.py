"""What a client reads of the log: entries, proof, earlier states, histories; part of tidemill.Client.

It changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.calls import STREAM_DEADLINE_S, Caller, Streamed
from tidemill.v1 import (
    job_service_pb2 as job_pb,
)
from tidemill.v1 import (
    log_service_pb2 as log_pb,
)
from tidemill.v1 import (
    log_service_pb2_grpc,
)


class LogCalls:
    """Calls about the log, through one caller."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._log = log_service_pb2_grpc.LogServiceStub(caller.channel)

    def entries(
        self,
        *,
        from_offset: int = 0,
        last: int = 0,
        follow: bool = False,
        include_void: bool = False,
    ) -> Iterator[log_pb.ReadEntriesResponse]:
        """Entries of the log in order; with `follow`, for ever, and across lost connections."""
        position = from_offset

        def start() -> Streamed[log_pb.ReadEntriesResponse]:
            request = log_pb.ReadEntriesRequest(
                from_offset=position,
                last=0 if position else last,
                follow=follow,
                include_void=include_void,
            )
            return self._log.ReadEntries(
                request, metadata=self._caller.metadata, timeout=STREAM_DEADLINE_S
            )

        for entry in self._caller.resuming(
            start, what="cannot read the log", give_up_after_s=300.0
        ):
            position = entry.offset + 1
            yield entry

    def verify_log(self) -> Iterator[log_pb.VerifyLogResponse]:
        """Recompute the chain from the first entry; progress, then an answer with `done`."""
        return self._caller.resuming(
            lambda: self._log.VerifyLog(
                log_pb.VerifyLogRequest(), metadata=self._caller.metadata, timeout=STREAM_DEADLINE_S
            ),
            what="the log was not verified",
            give_up_after_s=60.0,
        )

    def replay(
        self, *, at_ms: int = 0, at_offset: int = 0, deadline_s: float = 600.0
    ) -> log_pb.ReplayLogResponse:
        """Fold the log to a time or an offset; the end when neither is given."""
        request = log_pb.ReplayLogRequest(at_ms=at_ms, at_offset=at_offset)
        what = "the log was not replayed"
        return self._caller.unary(self._log.ReplayLog, request, what=what, deadline_s=deadline_s)

    def history(self, id_: str, *, from_ms: int = 0, to_ms: int = 0) -> list[job_pb.HistoryLine]:
        """What happened to a job (by id, unique prefix or number), node or queue, in order."""
        request = log_pb.ReadHistoryRequest(id=id_, from_ms=from_ms, to_ms=to_ms)
        return list(
            self._caller.unary(self._log.ReadHistory, request, what=f"no history of {id_!r}").lines
        )
