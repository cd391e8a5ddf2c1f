"""Faults of the cell itself: its services, its broker, its election, and what others write into its topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simulation.faults import Act, Fault, after
from simulation.process import Process
from simulation.services import SchedulerProcess
from simulation.storage import PARTITIONS
from simulation.world import World

_INPUTS: Final = ("requests", "reports", "verdicts")


def _leaders(world: World) -> list[SchedulerProcess]:
    return [scheduler for scheduler in world.schedulers if scheduler.leads]


def _service(world: World, fault: Fault) -> Process:
    """By its name in `what`, else any."""
    named = [each for each in world.services if each.name == fault.what]
    return named[0] if named else world.services[fault.target % len(world.services)]


# --- processes


def kill_leader(world: World, _fault: Fault) -> None:
    """SIGKILL."""
    for scheduler in _leaders(world):
        scheduler.crash()


def kill_leader_mid_step(world: World, fault: Fault) -> None:
    """SIGKILL between two lines of its driver, soon."""
    for scheduler in _leaders(world):
        scheduler.crash_in = 1 + fault.target % 12


def kill_leader_at_append(world: World, fault: Fault) -> None:
    """SIGKILL just before or after it appends, or saves a snapshot."""
    for scheduler in _leaders(world):
        scheduler.crash_at = ("before append", "after append", "after snapshot")[fault.target % 3]


def pause_leader(world: World, fault: Fault) -> None:
    """SIGSTOP, past its lease when it lasts."""
    for scheduler in _leaders(world):
        scheduler.pause(fault.lasts_ms)


def kill_service(world: World, fault: Fault) -> None:
    """SIGKILL of any process."""
    _service(world, fault).crash()


def kill_service_mid_step(world: World, fault: Fault) -> None:
    """SIGKILL of any process between two lines of its driver."""
    _service(world, fault).crash_in = 1 + fault.target % 12


def pause_service(world: World, fault: Fault) -> None:
    """SIGSTOP of any process."""
    _service(world, fault).pause(fault.lasts_ms)


def kill_everything(world: World, _fault: Fault) -> None:
    """Services and agents, all at once; what runs on the hosts lives on."""
    for process in (*world.services, *world.hosts):
        process.crash()


def lagging_gateway(world: World, fault: Fault) -> None:
    """A gateway reads the log slowly, and so is behind the others."""
    gateway = world.gateways[fault.target % len(world.gateways)]
    gateway.lag_ms = 300 + fault.target % 1_500

    def heal() -> None:
        gateway.lag_ms = 0

    after(world, fault, heal)


# --- broker and election


def broker_down(world: World, fault: Fault) -> None:
    """Every call of everybody fails."""
    world.broker.down = True

    def heal() -> None:
        world.broker.down = False

    after(world, fault, heal)


def election_down(world: World, fault: Fault) -> None:
    """Nobody is elected, no lease is renewed."""
    world.election.down = True

    def heal() -> None:
        world.election.down = False

    after(world, fault, heal)


def two_leaders(world: World, fault: Fault) -> None:
    """Everyone believes to hold the lease."""
    world.election.blind = True

    def heal() -> None:
        world.election.blind = False

    after(world, fault, heal)


def lease_revoked(world: World, _fault: Fault) -> None:
    """The store forgets the lease though its holder lives."""
    world.election.revoke()


def election_restored(world: World, fault: Fault) -> None:
    """The store comes back from a backup: terms go backwards, until an operator has raised them."""
    world.election.restore(1 + fault.target % 3)
    after(world, fault, lambda: world.election.raise_terms(world.referee.cluster.term))


def retention(world: World, fault: Fault) -> None:
    """The oldest inputs go: all that were decided, and now and then a few that were not."""
    topic = fault.what or _INPUTS[fault.target % len(_INPUTS)]
    for partition in range(PARTITIONS.get(topic, 1)):
        decided = world.referee.cluster.positions.get((topic, partition), 0)
        stored = len(world.broker.records.get((topic, partition), ()))
        beyond = fault.target % 3 if topic == "verdicts" else 0  # Verdicts are said again.
        world.broker.expire(topic, partition, min(stored, decided + beyond))


# --- what others write


def foreign_record(world: World, fault: Fault) -> None:
    """Somebody else writes into the log: noise, an old entry again, one of another cell, a torn copy."""
    stored = world.broker.records.get(("log", 0), [])
    if not stored:
        return
    old = stored[fault.target % len(stored)][2]
    kinds = (b"\xff\x00not an entry", old, old[: len(old) // 2], old.replace(b"sim", b"sun", 1))
    world.broker.store("log", 0, b"", kinds[fault.target % len(kinds)])


def poisoned_input(world: World, fault: Fault) -> None:
    """Noise in an input topic: it is parked, and stops nobody."""
    topic = _INPUTS[fault.target % len(_INPUTS)]
    partition = fault.target % PARTITIONS.get(topic, 1)
    world.broker.store(topic, partition, b"noise", b"\x0a\xff\xff noise %d" % fault.target)


def repeated_input(world: World, fault: Fault) -> None:
    """Inputs of a while ago are written again, as a producer does that lost its acknowledgements."""
    topic = _INPUTS[fault.target % len(_INPUTS)]
    partition = fault.target % PARTITIONS.get(topic, 1)
    stored = world.broker.records.get((topic, partition), [])
    for _, key, value in stored[-1 - fault.target % 20 :][:5]:
        world.broker.store(topic, partition, key, value)


CELL_FAULTS: Final[Mapping[str, Act]] = {
    "kill leader": kill_leader,
    "kill leader mid-step": kill_leader_mid_step,
    "kill leader at append": kill_leader_at_append,
    "pause leader": pause_leader,
    "kill service": kill_service,
    "kill service mid-step": kill_service_mid_step,
    "pause service": pause_service,
    "kill everything": kill_everything,
    "lagging gateway": lagging_gateway,
    "broker down": broker_down,
    "election down": election_down,
    "two leaders": two_leaders,
    "lease revoked": lease_revoked,
    "election restored": election_restored,
    "retention": retention,
    "foreign record": foreign_record,
    "poisoned input": poisoned_input,
    "repeated input": repeated_input,
}
