"""The simulated election: leases on virtual time, terms that grow, and the faults of real lock services.

A lease can be revoked too early, or outlive its holder; a paused holder believes in it until it looks. Two that lead at
once are what the chain must bear, so `holds` may be made to lie.
"""

from __future__ import annotations

from services.runtime.ports import PortError
from simulation.kernel import Kernel

LEASE_MS = 3_000


class Election:
    """Shared by all candidates. `down`: nobody can be elected or renew. `blind`: candidates believe what they like."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.term = 0
        self.down = False
        self.blind = False
        self._holder: SimLeadership | None = None
        self._ends_ms = 0

    def stand(self, candidate: SimLeadership) -> int | None:
        """The next term, when nobody holds the lease."""
        if self.down:
            raise PortError("the election store is down: try again")
        if not self.blind and self._holder is not None and self.kernel.now_ms < self._ends_ms:
            return None
        self.term += 1
        self._holder, self._ends_ms = candidate, self.kernel.now_ms + LEASE_MS
        return self.term

    def renew(self, candidate: SimLeadership) -> bool:
        """Whether the lease is still this candidate's; then it lasts longer."""
        if self._holder is not candidate or (not self.down and self.kernel.now_ms >= self._ends_ms):
            return False
        if not self.down:
            self._ends_ms = self.kernel.now_ms + LEASE_MS
        return self.kernel.now_ms < self._ends_ms

    def release(self, candidate: SimLeadership) -> None:
        """Another may lead at once."""
        if self._holder is candidate:
            self._holder = None

    def restore(self, terms_back: int) -> None:
        """The store was restored from a backup: nobody holds the lease, and terms have gone backwards."""
        self._holder = None
        self.term = max(0, self.term - terms_back)

    def raise_terms(self, above: int) -> None:
        """An operator lifts the store's terms above the log's."""
        self.term = max(self.term, above)

    def revoke(self) -> None:
        """The store forgets the lease though its holder lives."""
        self._holder = None


class SimLeadership:
    """Leadership of one process. The lease is renewed when it is asked about, as often as a driver turns."""

    def __init__(self, election: Election) -> None:
        self._election = election
        self._held = False
        self._lost = False

    def campaign(self, timeout_s: float) -> int | None:  # noqa: ARG002 - no time passes
        """See Leadership; never waits."""
        term = self._election.stand(self)
        self._held = term is not None
        return term

    def holds(self) -> bool:
        """See Leadership."""
        if self._election.blind:
            return True
        self._lost = self._lost or not (self._held and self._election.renew(self))
        return not self._lost

    def resign(self) -> None:
        """See Leadership."""
        self._lost = True
        self._election.release(self)

    def close(self) -> None:
        """See Leadership."""
        self.resign()
