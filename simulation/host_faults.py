"""Faults of hosts, their links and devices, and what people do to nodes, jobs and queues while things break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final

from services.agent.orders import Order
from simulation.clients import SMALL_DEVICES
from simulation.faults import Act, Fault, after
from simulation.kernel import US_PER_MS
from simulation.nodes import Host
from simulation.world import World
from tidemill.v1 import fleet_service_pb2 as fleet
from tidemill.v1 import job_service_pb2 as jobs
from tidemill.v1 import telemetry_pb2

# How long a lemon bears a run, and how long its reboot takes.
_BEARS_MS: Final = 8_000
_REBOOTS_MS: Final = 6_000
_XIDS: Final = ("79", "48", "94", "95", "31", "13", "63", "64", "119")


def hosts(world: World, fault: Fault) -> list[Host]:
    """So many hosts from the one that is meant; `count` 0: all."""
    size = len(world.hosts)
    return [world.hosts[(fault.target + i) % size] for i in range(fault.count or size)]


# --- machines


def kill_agent(world: World, fault: Fault) -> None:
    """SIGKILL of the agent; its runs live on."""
    for host in hosts(world, fault):
        host.crash()


def kill_agent_mid_step(world: World, fault: Fault) -> None:
    """SIGKILL of the agent between two of its actions."""
    for host in hosts(world, fault):
        host.crash_in = 1 + fault.target % 8


def kill_agent_at_start(world: World, fault: Fault) -> None:
    """SIGKILL of the agent just when it has started a run, or has stored what it must know of one."""
    for host in hosts(world, fault):
        host.crash_at = ("after start", "before start", "after persist")[fault.target % 3]


def pause_agent(world: World, fault: Fault) -> None:
    """SIGSTOP of the agent."""
    for host in hosts(world, fault):
        host.pause(fault.lasts_ms)


def reboot(world: World, fault: Fault) -> None:
    """The machine goes down with its runs, and comes back."""
    for host in hosts(world, fault):
        host.reboot(fault.lasts_ms)


def power_cut(world: World, fault: Fault) -> None:
    """As a reboot, on a disk that lied about its last writes."""
    for host in hosts(world, fault):
        host.unsynced_max = 1 + fault.target % 4
        host.reboot(fault.lasts_ms)
        host.unsynced_max = 0


def dead(world: World, fault: Fault) -> None:
    """The machine is gone; it comes back repaired, with another disk."""
    for host in hosts(world, fault):
        host.die()
        world.physics.storage.lose(host.name)
        after(world, fault, host.repair)


def partition(world: World, fault: Fault) -> None:
    """Host and gateways cannot talk: `what` up, down, or both; else one of them by the target."""
    ways = fault.what or ("up", "down", "both")[fault.target % 3]
    for host in hosts(world, fault):
        host.cut_up, host.cut_down = ways != "down", ways != "up"
        after(world, fault, host.join_network)


def mass_silence(world: World, fault: Fault) -> None:
    """All of a switch, a third of the hosts at least, cannot be heard."""
    count = max(3, len(world.hosts) // (1 + fault.target % 3))
    partition(world, Fault(fault.at_ms, fault.kind, fault.target, fault.lasts_ms, count, "both"))


def disk_full(world: World, fault: Fault) -> None:
    """Nothing can be written."""
    for host in hosts(world, fault):
        host.disk_full = True
        after(world, fault, host.empty_disk)


def disk_slow(world: World, fault: Fault) -> None:
    """A write takes seconds."""
    for host in hosts(world, fault):
        host.disk_ms = 1_000 + fault.target % 4_000
        after(world, fault, host.empty_disk)


def clock_step(world: World, fault: Fault) -> None:
    """An hour forward or back, on one host or service."""
    step_ms = 3_600_000 if fault.target % 2 else -3_600_000
    world.clocks[fault.target % len(world.clocks)].ahead_ms += step_ms


# --- links and devices


def link_down(world: World, fault: Fault) -> None:
    """One interface loses its link for a while; `what` names it, `all` is every one."""
    for host in hosts(world, fault):
        names = list(host.links)
        if not names:
            continue
        chosen = names if fault.what == "all" else [fault.what or names[fault.target % len(names)]]
        for name in chosen:
            host.link(name, up=False)
            if fault.lasts_ms:
                after(world, fault, _up(host, name))


def _up(host: Host, name: str) -> Callable[[], None]:
    return lambda: host.link(name, up=True)


def device_event(world: World, fault: Fault) -> None:
    """An XID of a device, by its number in `what`."""
    code = fault.what or _XIDS[fault.target % len(_XIDS)]
    for host in hosts(world, fault):
        device = fault.target % world.shape.devices
        host.signal(telemetry_pb2.SIGNAL_KIND_XID, device=device, code=code)


def bad_checkpoint(world: World, fault: Fault) -> None:
    """A checkpoint that was acknowledged is not to be loaded: bytes have rotted."""
    storage = world.physics.storage
    uris = [uri for uri in storage.committed if uri not in storage.rotten]
    if uris:
        storage.rotten.add(uris[-1 - fault.target % min(3, len(uris))])


def storage_down(world: World, fault: Fault) -> None:
    """Nothing can be saved or loaded: saves fail, who begins to load waits."""
    storage = world.physics.storage
    storage.down = True

    def heal() -> None:
        storage.down = False

    after(world, fault, heal)


def slow(world: World, fault: Fault) -> None:
    """A step takes 1.4 times as long there, and so in every gang that has a member there."""
    for host in hosts(world, fault):
        world.physics.slow[host.name] = 140
        after(world, fault, partial(_mend, world.physics.slow, host))


def fails_under_load(world: World, fault: Fault) -> None:
    """A lemon: each run that starts there is cut short after some seconds, by a reboot or by an event in `what`.

    The event is that of the first device. No repair helps: it is there again after a reboot, and fails under the next run.
    """
    for host in hosts(world, fault):
        world.physics.flaws[host.name] = partial(_overload, world, fault, host)
        if fault.lasts_ms:
            after(world, fault, partial(_mend, world.physics.flaws, host))


def _mend(ills: MutableMapping[str, Any], host: Host) -> None:
    ills.pop(host.name, None)


def _overload(world: World, fault: Fault, host: Host, order: Order) -> None:
    def give_in() -> None:
        run = host.runs.get(order.run)
        mended = world.healed or host.name not in world.physics.flaws
        if mended or run is None or run.ending is not None:
            return
        if not fault.what:
            host.reboot(_REBOOTS_MS)
            return
        for grant in [each for each in order.devices if each.index == 0]:
            host.signal(telemetry_pb2.SIGNAL_KIND_XID, device=grant.index, code=fault.what)
            world.kernel.after(
                _REBOOTS_MS * US_PER_MS, partial(_device_is_there, host, grant.index)
            )

    world.kernel.after(_BEARS_MS * US_PER_MS, give_in)


def _device_is_there(host: Host, device: int) -> None:
    host.signal(telemetry_pb2.SIGNAL_KIND_DEVICE_MISSING, device=device, code="present")


# --- people


def _a_node(world: World, fault: Fault) -> str:
    return world.hosts[fault.target % len(world.hosts)].name


def _a_job(world: World, fault: Fault) -> str | None:
    wanted = world.clients.wanted
    return wanted[fault.target % len(wanted)].job if wanted else None


def drain(world: World, fault: Fault) -> None:
    """A node is drained, and back in service later."""
    node = _a_node(world, fault)
    world.clients.ask(fleet.DrainNodeRequest(node=node, within_ms=10_000, message="maintenance"))
    after(world, fault, lambda: world.clients.ask(fleet.UncordonNodeRequest(node=node)))


def cordon(world: World, fault: Fault) -> None:
    """A node is taken out, and back in service later."""
    node = _a_node(world, fault)
    world.clients.ask(fleet.CordonNodeRequest(node=node, message="looked at"))
    after(world, fault, lambda: world.clients.ask(fleet.UncordonNodeRequest(node=node)))


def confirm_dead(world: World, _fault: Fault) -> None:
    """Somebody has looked, and vouches for every machine that is off; the cell may know better."""
    for host in world.hosts:
        if host.dead:
            world.clients.ask(fleet.ConfirmNodeDeadRequest(node=host.name, message="it is off"))


def cancel_a_job(world: World, fault: Fault) -> None:
    """Its owner does not want it any more."""
    job = _a_job(world, fault)
    if job is not None:
        world.clients.ask(jobs.CancelJobRequest(job=job))


def requeue_a_job(world: World, fault: Fault) -> None:
    """It is to start again, after a save or at once."""
    job = _a_job(world, fault)
    if job is not None:
        world.clients.ask(jobs.RequeueJobRequest(job=job, save_first=fault.target % 2 == 0))


def hold_a_job(world: World, fault: Fault) -> None:
    """It is held, and released later."""
    job = _a_job(world, fault)
    if job is not None:
        world.clients.ask(jobs.HoldJobRequest(job=job))
        after(world, fault, lambda: world.clients.ask(jobs.ReleaseJobRequest(job=job)))


def lower_limit(world: World, fault: Fault) -> None:
    """The small queue gets smaller while it is used, and gets its size back."""
    world.operators.limit(fault.target % SMALL_DEVICES)
    after(world, fault, lambda: world.operators.limit(SMALL_DEVICES))


HOST_FAULTS: Final[Mapping[str, Act]] = {
    "kill agent": kill_agent,
    "kill agent mid-step": kill_agent_mid_step,
    "kill agent at start": kill_agent_at_start,
    "pause agent": pause_agent,
    "reboot": reboot,
    "power cut": power_cut,
    "dead host": dead,
    "partition": partition,
    "mass silence": mass_silence,
    "disk full": disk_full,
    "disk slow": disk_slow,
    "clock step": clock_step,
    "link down": link_down,
    "device event": device_event,
    "bad checkpoint": bad_checkpoint,
    "storage down": storage_down,
    "slow host": slow,
    "fails under load": fails_under_load,
    "drain": drain,
    "cordon": cordon,
    "confirm dead": confirm_dead,
    "cancel a job": cancel_a_job,
    "requeue a job": requeue_a_job,
    "hold a job": hold_a_job,
    "lower limit": lower_limit,
}
