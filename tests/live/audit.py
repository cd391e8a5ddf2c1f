"""What the stored log of a trial cell says: folded here, with every invariant after every entry."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TypeVar

from services.runtime import codec
from services.runtime.trial import TrialCell
from services.runtime.wiring import open_cell
from statemachines import invariants, snapshot
from statemachines.cluster import Cluster
from statemachines.facts import Fact
from statemachines.watcher import Watcher
from tidemill import Client

F = TypeVar("F")


class Audit:
    """A reader of its own. `facts` and `terms` are those of accepted entries, in order."""

    def __init__(self, cell: TrialCell) -> None:
        self.cluster = Cluster(cell.name)
        self.broken: list[str] = []
        self.facts: list[Fact] = []
        self.terms: list[int] = []
        watcher = Watcher()
        with contextlib.ExitStack() as closing:
            opened = open_cell(cell.settings)
            closing.callback(opened.close)
            log = opened.event_log()
            closing.callback(log.close)
            while records := log.read(self.cluster.offset + 1, limit=256, timeout_s=0):
                for record in records:
                    entry = codec.decode_entry(record.offset, record.value)
                    if not self.cluster.void_reason(entry):
                        self.facts += [recorded.fact for recorded in entry.facts]
                        self.terms.append(entry.term)
                    self.broken += watcher.fold(self.cluster, entry)
        self.broken += invariants.violations(self.cluster)

    def of(self, kind: type[F]) -> list[F]:
        """Facts of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def states(self) -> Counter[str]:
        """Jobs by state."""
        return Counter(job.state.value for job in self.cluster.jobs.values())

    @property
    def digest(self) -> bytes:
        """Of the state."""
        return snapshot.digest(self.cluster)


def all_readers_agree(cell: TrialCell, client: Client) -> Audit:
    """The log verifies, and its fold here, the gateway's live one and a replay are one state; the audit."""
    done = list(client.verify_log())[-1]
    assert (done.done, done.ok, done.problem) == (True, True, "")
    replayed = client.replay()
    audit = Audit(cell)
    assert replayed.offset == audit.cluster.offset
    assert replayed.state_digest == replayed.live_digest == audit.digest
    return audit
