"""The sink of facts in the cell's own file keeps the contract."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from services.runtime.adapters.sqlite_facts import SqliteFacts
from services.runtime.adapters.sqlite_store import Store
from services.runtime.projection import FactSink, FlatFact, Mark, ParkedInput
from tests.contracts.fact_sink_contract import FactSinkContract, FactsOf


class SqliteFactsOf:
    """Reads the tables as any SQL client would."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack

    def sink(self) -> FactSink:
        store = Store(self._path, wall_ms=lambda: 0)
        self._stack.callback(store.close)
        sink = SqliteFacts(store)
        self._stack.callback(sink.close)
        return sink

    def rows(self, sql: str) -> list[Any]:
        connection = sqlite3.connect(self._path)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def facts(self) -> list[FlatFact]:
        sql = "SELECT offset, idx, digest, term, at_ms, type, key, value FROM facts ORDER BY offset, idx"
        return [FlatFact(Mark(*row[:3]), *row[3:]) for row in self.rows(sql)]

    def parked(self) -> list[ParkedInput]:
        digests = {(f.mark.offset, f.mark.index): f.mark.digest for f in self.facts()}
        sql = (
            "SELECT offset, idx, topic, partition, position, reason, key, value, whole FROM parked"
        )
        return [
            ParkedInput(Mark(row[0], row[1], digests[row[:2]]), *row[2:]) for row in self.rows(sql)
        ]


class TestSqliteFacts(FactSinkContract):
    @pytest.fixture
    def facts_of(self, tmp_path: Path) -> Iterator[FactsOf]:
        with ExitStack() as stack:
            made = SqliteFactsOf(tmp_path / "cell.db", stack)
            made.sink()
            yield made
