"""A cell to measure, with a fleet of simulated nodes on one stream.

Everything runs on this machine beside the load that measures it; figures say so by being of whole processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from services.runtime.trial import TrialCell
from simulation.fleet import NodeShape


class MeasuredCell(TrialCell):
    """Says little, so that logging is not what is measured."""

    def __init__(self, *, agents: int = 0, flags: Sequence[str] = ()) -> None:
        super().__init__("bench", agents=agents, flags=("--log-level", "warning", *flags))

    def fleet(self, shapes: Sequence[NodeShape]) -> None:
        """Attach simulated nodes, and wait until all are ready."""
        file = self.directory / "fleet.json"
        file.write_bytes(msgspec.json.encode(list(shapes)))
        self.spawn(
            "fleet", "simulation.fleet", "--gateway", self.address, "--token-file", str(self.node_token), "--nodes", str(file)
        )  # fmt: skip
        with self.client() as client:
            self.until("the fleet to join", lambda: client.cell().nodes_ready >= len(shapes))
