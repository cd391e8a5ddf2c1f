"""The distributed cell of the demo: the same processes on three Kafka brokers and three etcd members, some of which die.

A stack that runs already is used and left running; one that was started here is ended here.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from compose.local.stack import Condition, Stack, StackError
from services.demo.hosts import Host
from services.demo.story import Failed, OwnFold, trainer_path
from services.demo.timeline import Timeline
from services.demo.trial import fold_of, go_on_without, host_of
from services.runtime.tokens import ADMIN_TOKEN_FILE
from services.runtime.trial import TrialError
from services.runtime.trial_kafka import KafkaTrialCell
from tidemill import Client

STACK = Path("out") / "stack"


@contextlib.contextmanager
def running_stack(folder: Path, timeline: Timeline) -> Iterator[Stack]:
    """Three of each, healthy. Raises TrialError when they cannot be had."""
    try:
        stack = Stack.open(folder)
        down = [name for name in stack.names if stack.condition(name) is Condition.DOWN]
        stack.up()
    except StackError as error:
        raise TrialError(str(error)) from error
    told = "started for this" if down else "that run already"
    timeline.add("act", f"{', '.join(stack.names)}: real Kafka and etcd, {told}")
    try:
        yield stack
    finally:
        if down:
            stack.down()


class DistributedCell(KafkaTrialCell):
    """Two schedulers elected by etcd, health, two gateways; hosts use one gateway or the other."""

    python = sys.executable
    python_path = os.environ.get("PYTHONPATH", "")
    doors = 2
    trainer = trainer_path()

    def __init__(self, stack: Stack) -> None:
        super().__init__("demo", kafka=stack.layout.bootstrap, etcd=stack.layout.endpoints)
        self._stack = stack

    def start(self) -> None:
        """With its second gateway."""
        super().start()
        self._addresses = (self.address, self.second_gateway())
        self._next = itertools.cycle(self._addresses)

    def client(self, door: int = 0) -> Client:
        """Another connection to it, through one of its gateways."""
        if door == 0:
            return super().client()
        token = (self.directory / ADMIN_TOKEN_FILE).read_text(encoding="ascii").strip()
        return Client(self._addresses[door], token=token, deadline_s=60.0)

    def host(self, name: str) -> Host:
        """One more host of it, at the next gateway."""
        return host_of(self, name, next(self._next))

    def own_fold(self, offset: int) -> OwnFold:
        """Folded in this process, read from the brokers, up to that offset."""
        return fold_of(self.settings, offset)

    # --- what else dies

    def kill_broker(self, timeline: Timeline) -> None:
        """SIGKILL to the broker that leads the log; a job goes through without it."""
        self._kill(f"kafka-{self.log_broker()}", "the broker that leads the log", timeline)

    def kill_etcd_leader(self, timeline: Timeline) -> None:
        """SIGKILL to the etcd member that leads the others; a job goes through without it."""
        self._kill(etcd_leader(self._stack), "the member that leads etcd", timeline)

    def heal(self, timeline: Timeline) -> None:
        """Bring the members back."""
        self._stack.up()
        timeline.add("good", "the broker and the etcd member are back and in sync")

    def _kill(self, member: str, what: str, timeline: Timeline) -> None:
        with self.client() as client:
            go_on_without(client, timeline, member, what, kill=lambda: self._stack.kill(member))


def etcd_leader(stack: Stack) -> str:
    """The member that leads; raises Failed when none says so."""
    for member in stack.layout.etcd:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", member.http, timeout=2)
        ) as asked:
            try:
                asked.request("GET", "/metrics")
                said = asked.getresponse().read().decode()
            except OSError:
                continue  # Down: another leads.
        if "\netcd_server_is_leader 1\n" in said:
            return member.name
    raise Failed("no member of etcd says that it leads")
