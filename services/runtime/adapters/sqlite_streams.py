"""Partitions as tables of the embedded file: append, read, bounds, retention.

One row of `streams` a partition keeps its bounds, so that an offset is never given twice, even after everything was
dropped. Every function runs inside a transaction of its caller. It never waits and never commits.
"""
# ruff: noqa: S608 - names of tables come from topics.proto, never from outside.

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from services.runtime import topics

Row = tuple[int, bytes, bytes]

# A reader takes about this much memory a call, at most.
_READ_BYTES_MAX: Final = 16 << 20
_PRUNE_ROWS: Final = 5_000
_ROWS_PER_STATEMENT: Final = 200


def stream_name(topic: str, partition: int) -> str:
    """The table that holds one partition of a topic; offsets in it are without gaps."""
    return f"{topic}/{partition}"


def has_streams(connection: sqlite3.Connection, wanted: Mapping[topics.Topic, int]) -> bool:
    """Whether each topic has that many partitions already."""
    sql = "SELECT topic, count(*) FROM streams GROUP BY topic"
    counts = dict(connection.execute(sql).fetchall())
    return all(counts.get(topic.suffix, 0) >= count for topic, count in wanted.items())


def make_streams(connection: sqlite3.Connection, topic: topics.Topic, partitions: int) -> None:
    """Make the partitions that are not there yet."""
    for partition in range(partitions):
        name = stream_name(topic.suffix, partition)
        connection.execute(
            f'CREATE TABLE IF NOT EXISTS "{name}" '
            "(offset INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL)"
        )
        connection.execute(
            "INSERT OR IGNORE INTO streams VALUES (?, ?, ?, 0, 0)", (name, topic.suffix, partition)
        )


def count_partitions(connection: sqlite3.Connection, topic: str) -> int:
    """Partitions of the topic."""
    (count,) = connection.execute(
        "SELECT count(*) FROM streams WHERE topic = ?", (topic,)
    ).fetchone()
    assert count, f"no topic {topic!r}"
    return int(count)


def append_rows(
    connection: sqlite3.Connection, stream: str, rows: Sequence[tuple[int, bytes, bytes]]
) -> None:
    """Add rows of (at_ms, key, value) at the end."""
    found = connection.execute("SELECT next FROM streams WHERE name = ?", (stream,)).fetchone()
    assert found is not None, f"no partition {stream!r}"
    (first,) = found
    insert_rows(
        connection,
        f'INSERT INTO "{stream}" VALUES',
        [(offset, *row) for offset, row in enumerate(rows, first)],
    )
    connection.execute("UPDATE streams SET next = ? WHERE name = ?", (first + len(rows), stream))


def insert_rows(
    connection: sqlite3.Connection, insert: str, rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert many rows with few statements.

    Each statement gives up the interpreter's lock and waits to get it back: a row each, and a busy process needs
    milliseconds a row.
    """
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        some = rows[start : start + _ROWS_PER_STATEMENT]
        one = "(" + ", ".join("?" * len(some[0])) + ")"
        connection.execute(
            f"{insert} {', '.join([one] * len(some))}", list(chain.from_iterable(some))
        )


def bounds(connection: sqlite3.Connection, topic: str, partition: int) -> tuple[int, int]:
    """(oldest kept, next)."""
    sql = "SELECT oldest, next FROM streams WHERE name = ?"
    row = connection.execute(sql, (stream_name(topic, partition),)).fetchone()
    assert row is not None, f"no partition {topic}/{partition}"
    return row[0], row[1]


def rows_from(
    connection: sqlite3.Connection, stream: str, offset: int, limit: int
) -> Iterator[Row]:
    """(offset, key, value) from `offset` on: up to `limit`, and up to about 16 MiB."""
    sql = f'SELECT offset, key, value FROM "{stream}" WHERE offset >= ? ORDER BY offset LIMIT ?'
    size = 0
    for row in connection.execute(sql, (offset, limit)):
        yield row
        size += len(row[2])
        if size >= _READ_BYTES_MAX:
            return


def prune_slice(connection: sqlite3.Connection, topic: str, before_ms: int) -> int:
    """Drop a bounded number of records older than that from the front of each partition; answers how many.

    Stops at the first record that is young enough: what lies behind it waits for it, should the clock have jumped.
    """
    dropped = 0
    streams = connection.execute("SELECT name, oldest, next FROM streams WHERE topic = ?", (topic,))
    for name, oldest, end in streams.fetchall():
        edge = min(end, oldest + _PRUNE_ROWS)
        sql = f'SELECT min(offset) FROM "{name}" WHERE offset >= ? AND offset < ? AND at_ms >= ?'
        (young,) = connection.execute(sql, (oldest, edge, before_ms)).fetchone()
        kept = edge if young is None else young
        if kept > oldest:
            connection.execute(f'DELETE FROM "{name}" WHERE offset < ?', (kept,))
            connection.execute("UPDATE streams SET oldest = ? WHERE name = ?", (kept, name))
            dropped += kept - oldest
    return dropped
