"""One attempt of a job, for tests of the session: its environment, its sessions, and a wait on its gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.fakes.gateway import TOKEN, FakeGateway
from tidemill.training import Session, session
from tidemill.training.core import Limits

FAST = Limits(
    progress_every_ms=50,
    other_ranks_every_ms=50,
    advice_every_ms=200,
    first_backoff_ms=20,
    backoff_cap_ms=100,
)


class Cell:
    """One attempt's environment, and sessions in it."""

    def __init__(self, gateway: FakeGateway, root: Path) -> None:
        self.gateway, self.root = gateway, root
        self.ask_file = root / "ask"
        self.env = {
            "TIDEMILL_JOB": "job1",
            "TIDEMILL_ATTEMPT": "2",
            "TIDEMILL_RUN": "job1.2.0",
            "TIDEMILL_NODE": "n1",
            "TIDEMILL_GATEWAY": gateway.address,
            "TIDEMILL_TOKEN": TOKEN,
            "TIDEMILL_CHECKPOINT_DIR": str(root / "job1" / "a2"),
            "TIDEMILL_CHECKPOINT_REACH": "cell",
            "TIDEMILL_ASK_FILE": str(self.ask_file),
            "TIDEMILL_SPOOL_DIR": str(root / "spool"),
            "RANK": "0",
            "WORLD_SIZE": "1",
        }
        self.open: list[Session] = []

    def session(self, env: dict[str, str] | None = None, *, drain_s: float = 20.0) -> Session:
        opened = session(env=self.env | (env or {}), limits=FAST, drain_s=drain_s)
        self.open.append(opened)
        return opened

    def ask(self, ask: int, at_step: int, *, stop: bool) -> None:
        """As the agent does it: replaced whole."""
        aside = self.ask_file.with_suffix(".tmp")
        aside.write_text(json.dumps({"ask": ask, "at_step": at_step, "stop_after_save": stop}))
        aside.replace(self.ask_file)


def until(gateway: FakeGateway, condition: Callable[[], bool]) -> None:
    assert gateway.saw(condition), (gateway.kinds(), gateway.calls[-5:])
