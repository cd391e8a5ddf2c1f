"""Writes well-formed logs for tests: a tiny stand-in for a leader."""

from collections.abc import Sequence

from services.runtime import chain, codec
from services.runtime.ports import EventLog
from statemachines.cluster import FOLD_VERSION
from statemachines.entry import GENESIS, Position, Recorded
from statemachines.facts import Fact, QueueApplied, TermOpened
from statemachines.values import QueueId


class Writer:
    """Appends entries that extend the chain, unless told otherwise."""

    def __init__(self, log: EventLog, cell: str = "c", term: int = 1) -> None:
        self.log, self.cell, self.term = log, cell, term
        self.head = GENESIS
        self.at_ms = 1_000

    def append(
        self,
        facts: Sequence[Fact] = (),
        *,
        consumed: Sequence[Position] = (),
        prev: bytes | None = None,
        cell: str | None = None,
        term: int | None = None,
    ) -> None:
        self.append_body(
            codec.encode_body(consumed, [Recorded(fact) for fact in facts]), prev, cell, term
        )

    def append_body(
        self,
        body: bytes,
        prev: bytes | None = None,
        cell: str | None = None,
        term: int | None = None,
    ) -> None:
        void = any(given is not None for given in (prev, cell, term))
        prev = self.head if prev is None else prev
        cell = self.cell if cell is None else cell
        term = self.term if term is None else term
        self.at_ms += 1
        self.log.append(
            codec.encode_entry(cell=cell, term=term, prev=prev, at_ms=self.at_ms, body=body)
        )
        if not void:
            self.head = chain.entry_digest(
                prev=prev, cell=cell, term=term, at_ms=self.at_ms, body=body
            )

    def open_term(self) -> None:
        self.append([TermOpened(self.term, "leader", "nonce", FOLD_VERSION)])


def queue(name: str) -> QueueApplied:
    return QueueApplied(QueueId(name), "", -1, -1, -1)
