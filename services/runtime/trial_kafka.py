"""A trial cell on real Kafka and etcd: the same processes as an embedded one, its topics made first and deleted last.

It uses brokers and members that run already, by their addresses; starting and hurting those is for whoever owns them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from services.runtime.tokens import CELL_KEY_FILE, KEYS_DIRECTORY, TOKENS_FILE
from services.runtime.topic_admin import Declared, apply
from services.runtime.topic_plan import REPLICAS_DEFAULT
from services.runtime.topics import LOG, TOPICS
from services.runtime.trial import TrialCell, TrialError
from services.runtime.wiring import open_topic_admin


class KafkaTrialCell(TrialCell):
    """As a TrialCell; `kafka` and `etcd` are HOST:PORT,HOST:PORT. Its name gets an ending that no other cell has."""

    def __init__(
        self,
        name: str,
        *,
        kafka: str,
        etcd: str,
        agents: int = 0,
        flags: Sequence[str] = ("--schedulers", "2"),
    ) -> None:
        stack = ("--log", "kafka", "--kafka", kafka, "--leadership", "etcd", "--etcd", etcd)
        unique = f"{name}-{secrets.token_hex(3)}"
        super().__init__(unique, agents=agents, flags=flags, stack=stack)
        self._topics_made = False

    def prepare(self) -> None:
        """Make its topics as declared, with as many copies as there are brokers for."""
        admin = open_topic_admin(self.settings)
        copies = min(REPLICAS_DEFAULT, admin.brokers())
        said: list[str] = []
        self._topics_made = True
        if not apply(admin, Declared(self.name, copies), said.append):
            raise TrialError("\n".join(said))

    def __exit__(self, *_: object) -> None:
        """End everything, and delete the topics too."""
        super().__exit__()
        if self._topics_made:
            names = [topic.name(self.name) for topic in TOPICS.values()]
            open_topic_admin(self.settings).delete(names)

    def log_broker(self) -> int:
        """Id of the broker that leads the log now."""
        return open_topic_admin(self.settings).leader(LOG.name(self.name))

    def second_gateway(self) -> str:
        """Another door to it, with the same keys; its address."""
        home = self.directory / "gateway-2"
        tokens, key = self.directory / TOKENS_FILE, self.directory / KEYS_DIRECTORY / CELL_KEY_FILE
        flags = list(self.flags)
        flags[flags.index("--directory") + 1] = str(home)
        self.spawn(
            "gateway-2", "services.gateway", *flags, "--listen", "127.0.0.1:0", "--name", "gateway-2",
            "--tokens", str(tokens), "--key", str(key),
        )  # fmt: skip
        file = home / "gateway.addr"
        self.until("the second gateway", file.exists)
        return file.read_text(encoding="ascii").strip()
