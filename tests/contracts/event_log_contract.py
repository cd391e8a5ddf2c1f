"""What every EventLog keeps. A subclass gives `open_log`, which opens the same log again at each call."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest

from services.runtime.ports import EventLog, LogRecord

OpenLog: TypeAlias = Callable[[], EventLog]
DEADLINE_S = 30.0


def read_all(log: EventLog, count: int, offset: int = 0) -> list[LogRecord]:
    """The next `count` records; fails when they do not come."""
    records: list[LogRecord] = []
    while len(records) < count:
        found = log.read(offset, limit=100, timeout_s=DEADLINE_S)
        assert found, f"only {len(records)} of {count} records came"
        records += found
        offset = found[-1].offset + 1
    return records


def values(records: Sequence[LogRecord]) -> list[bytes]:
    return [record.value for record in records]


class EventLogContract:
    @pytest.fixture
    def open_log(self) -> OpenLog:
        raise NotImplementedError

    def test_an_empty_log_answers_with_nothing_after_the_timeout(self, open_log: OpenLog) -> None:
        assert list(open_log().read(0, limit=10, timeout_s=0)) == []
        assert list(open_log().read(0, limit=10, timeout_s=0.05)) == []

    def test_records_are_read_in_the_order_they_were_appended(self, open_log: OpenLog) -> None:
        log = open_log()
        for i in range(20):
            log.append(b"%d" % i)
        records = read_all(log, 20)
        assert values(records) == [b"%d" % i for i in range(20)]
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))

    def test_every_reader_sees_the_same_offsets(self, open_log: OpenLog) -> None:
        writer = open_log()
        for i in range(5):
            writer.append(b"%d" % i)
        assert read_all(open_log(), 5) == read_all(writer, 5)

    def test_reading_begins_at_the_offset_and_keeps_the_limit(self, open_log: OpenLog) -> None:
        log = open_log()
        for i in range(10):
            log.append(b"%d" % i)
        third = read_all(log, 10)[3]
        found = log.read(third.offset, limit=2, timeout_s=DEADLINE_S)
        assert 1 <= len(found) <= 2
        assert found[0] == third
        assert values(read_all(log, 7, third.offset)) == [b"%d" % i for i in range(3, 10)]

    def test_a_waiting_reader_gets_what_another_appends(self, open_log: OpenLog) -> None:
        reader, writer = open_log(), open_log()
        found: list[LogRecord] = []
        thread = threading.Thread(target=lambda: found.extend(read_all(reader, 1)))
        thread.start()
        writer.append(b"x")
        thread.join(DEADLINE_S)
        assert values(found) == [b"x"]

    def test_what_was_appended_is_there_after_everyone_closed(self, open_log: OpenLog) -> None:
        first = open_log()
        first.append(b"kept")
        first.close()
        assert values(read_all(open_log(), 1)) == [b"kept"]

    def test_an_entry_of_the_largest_size_comes_back(self, open_log: OpenLog) -> None:
        log = open_log()
        largest = bytes(range(256)) * (900_000 // 256)
        log.append(largest)
        log.append(b"after")
        assert values(read_all(log, 2)) == [largest, b"after"]

    def test_two_who_append_at_once_lose_nothing_and_keep_their_own_order(
        self, open_log: OpenLog
    ) -> None:
        logs = [open_log(), open_log()]

        def append(who: int) -> None:
            for i in range(50):
                logs[who].append(b"%d:%d" % (who, i))

        threads = [threading.Thread(target=append, args=(who,)) for who in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        stored = values(read_all(open_log(), 100))
        for who in range(2):
            mine = [value for value in stored if value.startswith(b"%d:" % who)]
            assert mine == [b"%d:%d" % (who, i) for i in range(50)]
