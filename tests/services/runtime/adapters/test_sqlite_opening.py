"""Opening the file of a cell while others open it: one of them makes it, and all find it whole."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.runtime.adapters.sqlite_store import Store

OPENERS = 6


@pytest.mark.parametrize("round_", range(10))
def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path, round_: int) -> None:
    together = threading.Barrier(OPENERS)

    def open_it() -> None:
        together.wait()
        Store(tmp_path / "cell.db", wall_ms=lambda: 1).close()

    with ThreadPoolExecutor(OPENERS) as pool:
        for opened in [pool.submit(open_it) for _ in range(OPENERS)]:
            opened.result()
