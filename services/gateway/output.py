"""What a run printed, on its way from the agent that has it to the caller who asked.

Routes by call: the agent knows the run, the gateway knows who waits. Never stores output.
"""

from __future__ import annotations

from typing import Final

from services.gateway.effects import Effects, Now, Outbox
from services.gateway.refusal import Refusal, Status
from tidemill.v1 import job_service_pb2, node_service_pb2

# Output that one caller may be behind by; more, and the caller is cut.
BEHIND_BYTES_MAX: Final = 16 << 20
CHUNKS_MAX: Final = 65_536


class OutputReader(Outbox):
    """One ReadLogs call. `run` and `node` say whose output, and where it is."""

    def __init__(self, effects: Effects, *, call: str, run: str, node: str) -> None:
        super().__init__(effects, limit=CHUNKS_MAX)
        self.call = call
        self.run = run
        self.node = node
        self._bytes = 0

    def take(self, chunk: node_service_pb2.LogChunk) -> None:
        """Output came from the agent, or its end, or why there is none."""
        if chunk.data:
            self._bytes += len(chunk.data)
            if self._bytes > BEHIND_BYTES_MAX:
                self.cut(self.too_slow())
                return
            self.put(job_service_pb2.ReadLogsResponse(data=chunk.data, run=self.run))
        if chunk.error:
            self.cut(
                Refusal(
                    Status.FAILED_PRECONDITION,
                    "no_output",
                    f"{self.node} cannot read the output of {self.run}: {chunk.error}",
                )
            )
        elif chunk.end:
            self.end()

    def pull(self, now: Now) -> job_service_pb2.ReadLogsResponse | None:
        message = super().pull(now)
        if message is None:
            return None
        assert isinstance(message, job_service_pb2.ReadLogsResponse)
        self._bytes -= len(message.data)
        return message

    def too_slow(self) -> Refusal:
        return Refusal(
            Status.RESOURCE_EXHAUSTED,
            "reader_too_slow",
            f"the output of {self.run} came faster than it was read, by more than {BEHIND_BYTES_MAX >> 20} MiB; "
            "read again, with tail_bytes (`tidemill logs --tail`) for the end alone",
        )

    def node_gone(self) -> None:
        """The agent that was sending has left."""
        self.cut(not_attached(self.run, self.node))


def not_attached(run: str, node: str) -> Refusal:
    """What a reader is told when nobody here can ask the node."""
    return Refusal(
        Status.UNAVAILABLE,
        "node_not_attached",
        f"{node}, which has the output of {run}, is not attached to this gateway; ask the gateway that it is "
        f"attached to, or again once it is back (`tidemill nodes {node}`)",
        retry_after_ms=5_000,
    )
