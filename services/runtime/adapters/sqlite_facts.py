"""The FactSink port of an embedded cell: tables `facts` and `parked` in its file, made when first projected.

Ordinary SQL reads them: `sqlite3 -readonly cell.db "SELECT type, key, at_ms FROM facts"`. Facts and the copies of parked
inputs of one write are stored together or not at all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from services.runtime.adapters.sqlite_store import Store, mapped
from services.runtime.projection import FlatFact, Mark, ParkedInput

# `offset` and `idx` are the fact's place in the log, `value` its tidemill.v1.Fact.
_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS facts (
        offset INTEGER NOT NULL, idx INTEGER NOT NULL, digest BLOB NOT NULL, term INTEGER NOT NULL,
        at_ms INTEGER NOT NULL, type TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (offset, idx)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS parked (
        offset INTEGER NOT NULL, idx INTEGER NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
        position INTEGER NOT NULL, reason TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, whole INTEGER NOT NULL,
        PRIMARY KEY (offset, idx)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS facts_of_key ON facts (key, offset, idx)",
)
_LAST: Final = "SELECT offset, idx, digest FROM facts ORDER BY offset DESC, idx DESC LIMIT 1"


class SqliteFacts:
    """FactSink on the cell's file."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.write(_make_tables, durable=False)
        self._reading = store.connect()

    def resume(self) -> Mark | None:
        with mapped(self._store.path):
            row = self._reading.execute(_LAST).fetchone()
        return None if row is None else Mark(*row)

    def write(self, facts: Sequence[FlatFact], parked: Sequence[ParkedInput]) -> None:
        """Store them in one transaction. Not synced by itself: what a crash takes is projected again."""
        fact_rows = [_fact_row(fact) for fact in facts]
        parked_rows = [_parked_row(each) for each in parked]

        def job(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT OR IGNORE INTO parked VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", parked_rows
            )
            connection.executemany(
                "INSERT OR IGNORE INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", fact_rows
            )

        self._store.write(job, durable=False)

    def close(self) -> None:
        self._reading.close()


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES:
        connection.execute(statement)


def _fact_row(fact: FlatFact) -> tuple[object, ...]:
    mark = fact.mark
    return (
        mark.offset, mark.index, mark.digest, fact.term, fact.at_ms, fact.kind, fact.key, fact.value,
    )  # fmt: skip


def _parked_row(parked: ParkedInput) -> tuple[object, ...]:
    mark = parked.mark
    return (
        mark.offset, mark.index, parked.topic, parked.partition, parked.position, parked.reason,
        parked.key, parked.value, parked.whole,
    )  # fmt: skip
