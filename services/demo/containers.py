"""The cell of the demo in containers: the stack of compose/compose.yml, which runs already; hosts are containers of it.

It asks Docker by its command line to kill and start containers of that stack, and leaves everything else to compose.
"""

from __future__ import annotations

import signal
import subprocess
from typing import Final

from services.demo.story import OwnFold
from services.demo.timeline import Timeline
from services.demo.trial import fold_of, go_on_without
from services.runtime.settings import CellSettings
from services.runtime.topics import LOG
from services.runtime.trial import TrialError
from services.runtime.wiring import open_topic_admin
from tidemill import Client

PROJECT: Final = "tidemill"
GATEWAYS: Final = ("127.0.0.1:17170", "127.0.0.1:17171")
SETTINGS: Final = CellSettings(
    cell="main", log="kafka", kafka="127.0.0.1:19092,127.0.0.1:19192,127.0.0.1:19292"
)
# Run inside: a signal to what init has started first, the container's program; a shell there keeps one, an agent.
_TELL: Final = """
import os, sys
first = lambda pid: int(open(f"/proc/{pid}/task/{pid}/children").read().split()[0])
program = first(1)
if open(f"/proc/{program}/comm").read() == "sh\\n":
    program = first(program)
os.kill(program, int(sys.argv[1]))
"""
# As a shell says that somebody was killed.
_KILLED: Final = 128 + signal.SIGKILL


class Container:
    """One container of the stack, by the name of its service."""

    def __init__(self, service: str) -> None:
        self.service = service
        labels = (f"project={PROJECT}", f"service={service}")
        asked = [word for label in labels for word in ("-f", f"label=com.docker.compose.{label}")]
        self.id = docker("ps", "-aq", *asked)
        if not self.id:
            raise TrialError(
                f"no container of {service}: start the stack with project name {PROJECT}, as "
                "docs/how-to/containers.md says"
            )

    def die(self) -> int:
        """SIGKILL to all of it; nobody starts it again."""
        count = len(docker("top", self.id, "-o", "pid").splitlines()) - 1
        docker("kill", self.id)
        return count

    def crash(self) -> None:
        """SIGKILL to its program, which is started again: by the restart policy of the container that ended with it.

        An agent by its node, which lives on with all that runs there.
        """
        self.tell(signal.SIGKILL)

    def tell(self, number: signal.Signals) -> None:
        """A signal to its program alone, not to what that has started; a container that ends of it kills who sent it."""
        docker("exec", self.id, "python3", "-c", _TELL, str(int(number)), well=(0, _KILLED))

    def start(self) -> None:
        """Again, with its data."""
        docker("start", self.id)

    def restart(self) -> None:
        """It is asked to end, and started again."""
        docker("restart", self.id)

    def pause(self) -> None:
        """All of it stands still."""
        docker("pause", self.id)

    def resume(self) -> None:
        """It goes on."""
        docker("unpause", self.id)

    def end(self) -> None:
        """Containers are compose's to end."""


class ContainerCell:
    """Three schedulers, two gateways, two health workers, a projector and four hosts."""

    python = "python3"
    python_path = "/opt/tidemill"
    doors = len(GATEWAYS)
    trainer = "/opt/tidemill/services/demo/train_numpy.py"

    def __init__(self) -> None:
        self._token = docker("exec", Container("gateway-1").id, "cat", "/keys/token")
        self._killed: list[Container] = []

    def client(self, door: int = 0) -> Client:
        """Another connection to it, through one of its gateways."""
        return Client(GATEWAYS[door], token=self._token, deadline_s=60.0)

    def host(self, name: str) -> Container:
        """It runs already."""
        return Container(name)

    def kill_leader(self, client: Client) -> str:
        """Its container's program: schedulers are named as their services."""
        leader = client.cell().leader
        Container(leader).crash()
        return leader

    def own_fold(self, offset: int) -> OwnFold:
        """Folded in this process, read from the brokers, up to that offset."""
        return fold_of(SETTINGS, offset)

    # --- what else dies

    def kill_broker(self, timeline: Timeline) -> None:
        """The broker that leads the log; a job goes through without it."""
        leader = open_topic_admin(SETTINGS).leader(LOG.name(SETTINGS.cell))
        self._kill(f"kafka-{leader}", "the broker that leads the log", timeline)

    def kill_etcd_member(self, timeline: Timeline) -> None:
        """One member; a job goes through without it."""
        self._kill("etcd-1", "a member of etcd", timeline)

    def heal(self, timeline: Timeline) -> None:
        """Bring the members back."""
        for container in self._killed:
            container.start()
        timeline.add("good", "the broker and the etcd member are started again")

    def _kill(self, member: str, what: str, timeline: Timeline) -> None:
        container = Container(member)
        self._killed.append(container)
        with self.client() as client:
            go_on_without(client, timeline, member, what, kill=container.die)


def docker(*words: str, well: tuple[int, ...] = (0,)) -> str:
    """What Docker's command line says; raises TrialError when it does not end well."""
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise TrialError("no `docker` command here; see docs/how-to/containers.md") from error
    if done.returncode not in well:
        raise TrialError(f"docker {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
