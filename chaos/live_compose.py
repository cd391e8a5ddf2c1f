"""Live chaos on the containers of compose/compose.yml: what strikes them, by Docker's command line, and how they are left.

It uses the stack that runs already and leaves it running: every container that ran runs again, every node that was in
service is in service again, and no job of the scenario is left. Nothing is built, created or deleted here.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from chaos.live_scene import Scene
from chaos.scenarios import UnknownScenarioError
from services.demo.containers import PROJECT, SETTINGS, Container, ContainerCell, docker
from services.runtime.settings import CellSettings
from services.runtime.topics import LOG
from services.runtime.trial import READY_WITHIN_S, TrialError
from services.runtime.wiring import open_topic_admin
from simulation.faults import Fault
from simulation.world import Shape
from statemachines.job import ENDED
from tidemill import Client, TidemillError

START: Final = (
    f"docker compose -p {PROJECT} --env-file compose/versions.env -f compose/compose.yml up -d "
    "(docs/how-to/containers.md)"
)
_LOOK_S: Final = 0.2
# A broker that was killed reads its log first.
_WHOLE_WITHIN_S: Final = 180.0


class ComposeCell(ContainerCell):
    """The cell of the stack, as live chaos asks it."""

    name: str = SETTINGS.cell
    settings: CellSettings = SETTINGS

    def until(
        self, what: str, holds: Callable[[], bool], *, within_s: float = READY_WITHIN_S
    ) -> None:
        """Look again and again until it holds; a gateway that is away for a moment is asked again. Raises TrialError."""
        ends, why = time.monotonic() + within_s, ""
        while True:
            try:
                if holds():
                    return
            except TidemillError as error:
                why = f"; last: {error}"
            if time.monotonic() > ends:
                raise TrialError(f"waited for {what}{why}; see `docker ps` and `docker logs`")
            time.sleep(_LOOK_S)


class ComposeScene(Scene[ComposeCell]):
    """Containers by the names of their services; the hosts of the scenario are the first nodes of them."""

    python = ContainerCell.python
    environment: Mapping[str, str] = {"PYTHONPATH": ContainerCell.python_path}

    def __init__(self, cell: ComposeCell, running: list[str], shape: Shape) -> None:
        """Raises UnknownScenarioError when they are too few or too small for it, or at work."""
        super().__init__(cell)
        self._began_s = time.time_ns() // 1_000_000_000
        self.containers = {service: Container(service) for service in running}
        there = self.named("node")
        with cell.client() as client:
            self._nodes_ready = client.cell().nodes_ready
            if why := unfit(client, there, shape):
                raise UnknownScenarioError(why)
        self.hosts, self._spare = there[: shape.nodes], there[shape.nodes :]
        self.nodes = {f"n{number:04}": host for number, host in enumerate(self.hosts)}

    def strike(self, fault: Fault) -> None:
        """By its act below."""
        ACTS[fault.kind](self, fault)

    def keep(self, folder: Path) -> None:
        """What the containers have said since the scenario began."""
        for service, container in self.containers.items():
            with (folder / f"{service}.log").open("wb") as file:
                said = ["docker", "logs", "--since", str(self._began_s), container.id]
                subprocess.run(said, stdout=file, stderr=file, check=True)

    # --- what is struck

    def named(self, kind: str) -> list[str]:
        """Services of a kind, in order: gateway-1, gateway-2."""
        return sorted(name for name in self.containers if name.partition("-")[0] == kind)

    def one(self, kind: str, number: int) -> str:
        """Service by its number from 0."""
        names = self.named(kind)
        return names[number % len(names)]

    def chosen(self, fault: Fault) -> list[Container]:
        """Hosts from the target on; `count` 0: all."""
        size = len(self.hosts)
        numbers = [(fault.target + i) % size for i in range(fault.count or size)]
        return [self.containers[self.hosts[number]] for number in numbers]

    # --- as it was found

    def take(self) -> None:
        """Work goes only to the scenario's hosts, and the log is the scenario's from here on."""
        with self.cell.client() as client:
            for node in self._spare:
                client.cordon(node, message="not of the scenario that is played")
            self.first = client.cell().offset + 1

    def leave(self) -> None:
        """All that ran runs, all nodes are ready and in service, no job is left. Raises TrialError."""
        self.heal()
        for service, state in _states().items():
            if service in self.containers and state == "paused":
                self.containers[service].resume()
            elif service in self.containers and state != "running":
                self.containers[service].start()
        with self.cell.client() as client:
            whole = partial(self._whole, client)
            self.cell.until("the stack to be whole again", whole, within_s=_WHOLE_WITHIN_S)

    def _whole(self, client: Client) -> bool:
        for job in self.jobs:
            if client.job(job).state not in ENDED:
                client.cancel(job, message="the scenario is over")
        for node in self._spare:
            client.uncordon(node)
        self.jobs, self._spare = [], []
        return client.cell().nodes_ready >= self._nodes_ready


def unfit(client: Client, there: list[str], shape: Shape) -> str:
    """Why it cannot be played there; empty when it can."""
    if len(there) < shape.nodes:
        return f"the scenario needs {shape.nodes} nodes, and {len(there)} containers of nodes run: --stack local"
    for node in there[: shape.nodes]:
        view = client.node(node)
        if (view.state, view.service) != ("ready", "in_service"):
            return f"{node} is {view.state}, {view.service}: all nodes must be ready (`tidemill nodes`)"
        if len(view.devices) < shape.devices:
            return f"the scenario needs {shape.devices} devices a node, and {node} has {len(view.devices)}: --stack local"
    if count := client.cell().jobs_running + client.cell().jobs_waiting:
        return f"{count} jobs run or wait in this cell, and would be struck: end them first (`tidemill jobs`)"
    return ""


@contextlib.contextmanager
def staged(shape: Shape) -> Iterator[ComposeScene]:
    """The stack that runs. Raises UnknownScenarioError when there is none, TrialError when it is not left whole."""
    try:
        running = [service for service, state in _states().items() if state == "running"]
        if "gateway-1" not in running:
            raise UnknownScenarioError(f"no such stack runs; start it: {START}")
        scene = ComposeScene(ComposeCell(), running, shape)
    except (TrialError, TidemillError) as error:
        raise UnknownScenarioError(f"{error}; start the stack: {START}") from error
    with contextlib.ExitStack() as closing:
        closing.callback(scene.leave)
        scene.take()
        yield scene


def _states() -> dict[str, str]:
    """Of all containers of the stack, by service."""
    label = "com.docker.compose"
    said = docker(
        "ps", "-a", "--filter", f"label={label}.project={PROJECT}",
        "--format", '{{.Label "' + label + '.service"}} {{.State}}',
    )  # fmt: skip
    return dict(line.split() for line in said.splitlines())


# --- acts

Act: TypeAlias = Callable[[ComposeScene, Fault], None]


def _kill_leader(scene: ComposeScene, _fault: Fault) -> None:
    with scene.cell.client() as client:
        scene.cell.kill_leader(client)


def _kill_service(scene: ComposeScene, fault: Fault) -> None:
    kind, _, number = fault.what.partition("-")
    scene.containers[scene.one(kind, int(number or 0))].crash()


def _kill_agent(scene: ComposeScene, fault: Fault) -> None:
    """The program alone: its container starts another, which finds what runs."""
    for container in scene.chosen(fault):
        container.crash()


def _kill_everything(scene: ComposeScene, _fault: Fault) -> None:
    """All that is ours, agents too, before the first is back; brokers and members have faults of their own."""
    storage = {*scene.named("kafka"), *scene.named("etcd")}
    ours = [each for service, each in scene.containers.items() if service not in storage]
    with ThreadPoolExecutor(len(ours)) as pool:
        list(pool.map(Container.crash, ours))


def _dead_host(scene: ComposeScene, fault: Fault) -> None:
    for container in scene.chosen(fault):
        container.die()
        scene.later(fault.lasts_ms, container.start)


def _pause_agent(scene: ComposeScene, fault: Fault) -> None:
    """The program alone: what it runs goes on, under its supervisors."""
    for container in scene.chosen(fault):
        container.tell(signal.SIGSTOP)
        scene.later(fault.lasts_ms, partial(container.tell, signal.SIGCONT))


def _leader(scene: ComposeScene, _fault: Fault) -> str:
    """Schedulers are named as their services."""
    with scene.cell.client() as client:
        return client.cell().leader


def _broker(scene: ComposeScene, fault: Fault) -> str:
    """The one that leads the log, or by its number from 0."""
    if fault.what == "leader":
        return f"kafka-{open_topic_admin(SETTINGS).leader(LOG.name(SETTINGS.cell))}"
    return scene.one("kafka", fault.target)


def _etcd(scene: ComposeScene, fault: Fault) -> str:
    """The member that leads, or by its number from 0."""
    if fault.what != "leader":
        return scene.one("etcd", fault.target)
    for name in scene.named("etcd"):
        with contextlib.suppress(TrialError):  # Down: another leads.
            container = scene.containers[name]
            said = docker("exec", container.id, "etcdctl", "endpoint", "status", "-w", "json")
            status = msgspec.json.decode(said, type=list[_Endpoint])[0].Status
            if status.leader == status.header.member_id:
                return name
    raise TrialError("no member of etcd says that it leads")


class _Header(msgspec.Struct):
    member_id: int


class _Status(msgspec.Struct):
    header: _Header
    leader: int


class _Endpoint(msgspec.Struct):
    """What `etcdctl endpoint status` says of one member."""

    Status: _Status


def _killed(choose: Callable[[ComposeScene, Fault], str]) -> Act:
    def act(scene: ComposeScene, fault: Fault) -> None:
        container = scene.containers[choose(scene, fault)]
        container.die()
        scene.later(fault.lasts_ms, container.start)

    return act


def _paused(choose: Callable[[ComposeScene, Fault], str]) -> Act:
    def act(scene: ComposeScene, fault: Fault) -> None:
        container = scene.containers[choose(scene, fault)]
        container.pause()
        scene.later(fault.lasts_ms, container.resume)

    return act


def _restarted(choose: Callable[[ComposeScene, Fault], str]) -> Act:
    def act(scene: ComposeScene, fault: Fault) -> None:
        scene.containers[choose(scene, fault)].restart()

    return act


def _all_away(kind: str) -> Act:
    def act(scene: ComposeScene, fault: Fault) -> None:
        for name in scene.named(kind):
            scene.containers[name].die()
            scene.later(fault.lasts_ms, scene.containers[name].start)

    return act


ACTS: Final[Mapping[str, Act]] = {
    "kill leader": _kill_leader,
    "pause leader": _paused(_leader),
    "kill service": _kill_service,
    "kill agent": _kill_agent,
    "kill everything": _kill_everything,
    "pause agent": _pause_agent,
    "dead host": _dead_host,
    "kill broker": _killed(_broker),
    "pause broker": _paused(_broker),
    "restart broker": _restarted(_broker),
    "broker down": _all_away("kafka"),
    "kill etcd": _killed(_etcd),
    "pause etcd": _paused(_etcd),
    "restart etcd": _restarted(_etcd),
    "election down": _all_away("etcd"),
}
