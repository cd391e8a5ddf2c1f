"""What is known of nodes and done about them: verdicts through the real leader and lemon detector, and repairs.

The people are modelled: they repair what is shut, change a port's cable while its node works on, vouch for the dead,
replace lemons, and bring back what is mended. Never decides what becomes of a job.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from services.health.lemons import Lemons
from services.health.messages import (
    DeviceJudged,
    NicJudged,
    NodeGone,
    NodeKnown,
    NodeSuspect,
    NodeUnfit,
)
from services.scheduler import node_requests
from services.scheduler.draft import Draft
from simulation.goodput.arms import Arm
from simulation.goodput.faults import Event
from simulation.goodput.fleet import inventory, node_id
from simulation.goodput.leader import Leader
from simulation.goodput.machine import Machine
from simulation.goodput.parameters import Channel, World
from simulation.goodput.training import Stage
from statemachines.device import DeviceState
from statemachines.facts import NodeJoined
from statemachines.nic import NicState
from statemachines.node import Node, NodeState, ServiceState
from statemachines.values import Reason
from tidemill.v1 import requests_pb2

# An operator vouches for a lost node at the latest when it is taken for repair [A].
_CONFIRM_MS: Final = 600_000
# A port that comes back by itself counts as up when it was up for this long [P: our rules].
_STEADY_MS: Final = 10_000
# A node that was lost by mistake is back as soon as its agent has ended what it ran [A].
_REJOIN_MS: Final = 10_000
_FAULTY: Final = Reason("fault", "a fault of the model")


class Workshop:
    """All nodes of a fleet. `unwell` are those to look at when a job begins; `replaced` counts lemons."""

    def __init__(self, world: World, arm: Arm, stage: Stage, leader: Leader, *, lemons: frozenset[int], seed: int) -> None:  # fmt: skip
        self.machines = [Machine(i, lemon=i in lemons) for i in range(world.nodes)]
        self.unwell: dict[int, None] = {}
        self.replaced = 0
        self.out_max = 0
        self._world, self._arm, self._seed = world, arm, seed
        self._stage, self._leader = stage, leader
        self._lemons = Lemons(arm.lemons) if arm.lemons is not None else None
        if self._lemons is not None:
            for machine in self.machines:
                self._lemons.known(_known(self._node(machine)))
        self._replacing: set[int] = set()
        self._slow_out: set[int] = set()
        self._out = 0
        self._out_since_ms = 0
        self._out_ms = 0

    def out_mean(self, now_ms: int) -> float:
        """Nodes in repair, averaged over the time since the start."""
        self._count_out(0)
        return self._out_ms / now_ms

    # --- what is said of a node

    def suspect(self, machine: Machine) -> None:
        """It is silent: nothing new is placed there."""
        node = self._node(machine)
        if machine.dead and node.state is NodeState.READY:
            self._say(NodeSuspect(node.id, node.incarnation, self._arm.suspect_ms))

    def give_up(self, machine: Machine) -> None:
        """It is silent for too long: what it ran goes on elsewhere."""
        node = self._node(machine)
        self._say(NodeGone(node.id, node.incarnation, self._arm.lost_ms[1], "silent"))

    def shut(self, machine: Machine) -> None:
        """A device of it is faulty: it takes nothing new."""
        self._judge_device(machine, DeviceState.FAULTY)

    def unplug(self, machine: Machine) -> None:
        """A port of it is down for good: gangs take it last."""
        if not self._unplugged(machine):
            self._judge_nic(machine, NicState.FAULTY)

    def look_for_lemons(self) -> None:
        """Who broke attempts since the last look is counted; who did so too often is cordoned, and replaced."""
        broken = self._leader.take_broken()
        if self._lemons is None or not broken:
            return
        for each in broken:
            self._lemons.struck(each, self._stage.now_ms)
        for said in self._lemons.tick(self._stage.now_ms):
            assert isinstance(said, NodeUnfit), "of lemons nothing else is said"
            self._leader.verdict(self._stage.now_ms, said)
            machine = self.machines[int(said.node[1:])]
            self._learn(machine)
            if self._node(machine).service is not ServiceState.IN_SERVICE:
                self._replace(machine)

    def drain_slow(self, machine: Machine) -> None:
        """It slows its gang down: what runs there leaves, unless too many are out for that."""
        rules, node = self._arm.stragglers, self._node(machine)
        assert rules is not None, "only who has rules for it knows"
        most = max(1, len(self.machines) * rules.lemon_percent // 100)
        if node.service is ServiceState.IN_SERVICE and len(self._slow_out) < most:
            self._slow_out.add(machine.number)
            self._say(NodeUnfit(node.id, node.incarnation, "slow", rules.straggler_drain_ms))

    def fast_again(self, machine: Machine) -> None:
        """People bring it back when it is as fast as the others."""
        if machine.number in self._slow_out:
            self._slow_out.discard(machine.number)
            if not machine.out:
                self._uncordon(machine)
                self._stage.turn()

    # --- repairs

    def mend(self, machine: Machine, event: Event) -> None:
        """A fault is known: repair the node, or only its port."""
        if event.channel in self._arm.shuts:
            if not machine.out:
                self._take_out(machine)
                self._stage.after(event.repair_ms, lambda: self._repaired(machine, event))
        elif event.channel is Channel.PORT:
            wait_ms = _STEADY_MS if event.transient else event.repair_ms
            self._stage.after(wait_ms, lambda: self._plugged(machine, event))

    def alarm(self, machine: Machine) -> None:
        """A healthy node is given up by mistake; it is back soon."""
        self.give_up(machine)
        self._stage.after(_REJOIN_MS, lambda: self._alarm_over(machine))

    def announce(self, machine: Machine) -> None:
        """Work on it is planned: it takes nothing new."""
        if not machine.out:
            said = requests_pb2.CordonNode(node=node_id(machine.number), message="planned work")
            self._request(lambda draft: node_requests.cordon(draft, said))

    def drain(self, machine: Machine, within_ms: int) -> None:
        """For planned work."""
        if not machine.out:
            said = requests_pb2.DrainNode(node=node_id(machine.number), within_ms=within_ms)
            self._request(lambda draft: node_requests.drain(draft, said))
            self._stage.turn()

    def work_done(self, machine: Machine) -> None:
        """The planned work is over."""
        if not machine.out:
            self._uncordon(machine)
            self._stage.turn()

    def _take_out(self, machine: Machine) -> None:
        machine.out = True
        self._count_out(1)
        if self._node(machine).state is NodeState.LOST:
            self._stage.after(_CONFIRM_MS, lambda: self._confirm_dead(machine))

    def _confirm_dead(self, machine: Machine) -> None:
        if self._vouch(machine):
            self._stage.turn()

    def _repaired(self, machine: Machine, event: Event) -> None:
        if machine.number in self._replacing:
            return  # It turned out to be a lemon.
        machine.bad = event if event.unfixed else None  # A lemon stays one: repairs do not help it.
        self._back(machine)

    def _plugged(self, machine: Machine, event: Event) -> None:
        if machine.bad is not None and machine.bad.number == event.number and not event.unfixed:
            machine.bad = None
        if self._unplugged(machine) and not machine.out:
            self._judge_nic(machine, NicState.HEALTHY)
            self._stage.turn()

    def _replace(self, machine: Machine) -> None:
        self._replacing.add(machine.number)
        if not machine.out:
            self._take_out(machine)
        chance = Random(f"{self._seed}/{machine.number}/{self._stage.now_ms}/replace")
        physical = self._world.repair.physical
        out_ms = round(chance.lognormvariate(0, physical.sigma) * physical.median_s * 1000)
        self._stage.after(out_ms, lambda: self._replaced(machine))

    def _replaced(self, machine: Machine) -> None:
        self.replaced += 1
        self._replacing.discard(machine.number)
        machine.bad, machine.lemon = None, False
        self._back(machine)
        self._learn(machine)

    def _back(self, machine: Machine) -> None:
        machine.out = machine.dead = False
        self._count_out(-1)
        if machine.well:
            self.unwell.pop(machine.number, None)
        self._vouch(machine)
        self._rejoin(machine)
        self._judge_device(machine, DeviceState.HEALTHY)
        if self._unplugged(machine):
            self._judge_nic(machine, NicState.HEALTHY)
        self._uncordon(machine)
        self._stage.turn()

    def _alarm_over(self, machine: Machine) -> None:
        if self._node(machine).state is NodeState.LOST and not machine.out:
            self._vouch(machine)
            self._rejoin(machine)
            self._stage.turn()

    def _vouch(self, machine: Machine) -> bool:
        """That nothing lives on it any more; whether anybody had waited to hear that."""
        node = node_id(machine.number)
        lost = self._node(machine).state is NodeState.LOST
        if not lost or not self._leader.cluster.usage[node].runs:
            return False
        said = requests_pb2.ConfirmNodeDead(node=node, message="in repair")
        self._request(lambda draft: node_requests.confirm_dead(draft, said))
        return True

    def _rejoin(self, machine: Machine) -> None:
        node = self._node(machine)
        if node.state is NodeState.READY:
            return
        incarnation = node.incarnation + (node.state is NodeState.LOST)
        joined = NodeJoined(node.id, incarnation, inventory(machine.number))
        self._request(lambda draft: draft.record(joined))
        self._learn(machine)

    def _uncordon(self, machine: Machine) -> None:
        said = requests_pb2.UncordonNode(node=node_id(machine.number))
        self._request(lambda draft: node_requests.uncordon(draft, said))

    # --- small words

    def _node(self, machine: Machine) -> Node:
        return self._leader.cluster.nodes[node_id(machine.number)]

    def _say(self, said: NodeSuspect | NodeGone | NodeUnfit | DeviceJudged | NicJudged) -> None:
        self._leader.verdict(self._stage.now_ms, said)

    def _request(self, what: Callable[[Draft], None]) -> None:
        self._leader.decide(self._stage.now_ms, what)

    def _learn(self, machine: Machine) -> None:
        if self._lemons is not None:
            self._lemons.known(_known(self._node(machine)))

    def _judge_device(self, machine: Machine, condition: DeviceState) -> None:
        node = self._node(machine)
        if node.devices[0].state is not condition:
            self._say(DeviceJudged(node.id, node.incarnation, 0, condition, _FAULTY))

    def _judge_nic(self, machine: Machine, condition: NicState) -> None:
        node = self._node(machine)
        name = node.nics[0].spec.name
        self._say(NicJudged(node.id, node.incarnation, name, condition, _FAULTY))

    def _unplugged(self, machine: Machine) -> bool:
        return self._node(machine).nics[0].state is NicState.FAULTY

    def _count_out(self, by: int) -> None:
        now_ms = self._stage.now_ms
        self._out_ms += self._out * (now_ms - self._out_since_ms)
        self._out_since_ms = now_ms
        self._out += by
        self.out_max = max(self.out_max, self._out)


def _known(node: Node) -> NodeKnown:
    in_service = node.service is ServiceState.IN_SERVICE
    return NodeKnown(node.id, node.incarnation, node.state, in_service=in_service)
