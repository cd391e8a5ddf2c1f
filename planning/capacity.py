"""Free capacity of the open nodes, in the order that a search wants it: tightest first.

Kept by touched node, so a step costs what it changed. One sorted list a device model, of (free devices, impaired, free
milli-CPU, node), and one for work without devices, of (has devices, free milli-CPU, node): CPU-only work goes to nodes
without devices first. Of equally tight nodes those whose network is not whole come last, for a gang is as fast as its
slowest link and ends with its first. Never decides who gets what.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from typing import Final, TypeAlias

from statemachines.cluster import Cluster
from statemachines.device import Device, DeviceState
from statemachines.nic import NicState
from statemachines.node import Node
from statemachines.values import WHOLE_DEVICE_MILLI, Grant, NodeId, Resources

_NO_NODES: Final[Collection[NodeId]] = frozenset()
# Growth of room remembered for those that wait for it; beyond it they look at everything.
_GROWTH_KEPT: Final = 8192
# Reading a member off its enum is slow enough to see here.
_NIC_HEALTHY: Final = NicState.HEALTHY
_DEVICE_FAULTY: Final = DeviceState.FAULTY


# (free devices, whether the network is impaired, free milli-CPU, node)
Listed: TypeAlias = tuple[int, bool, int, NodeId]


class Free:
    """What one open node has left. `devices` maps a model to its free indices, best first; `linked` is whether a member of a larger gang may go here, `impaired` whether it had better not."""

    __slots__ = ("cpu_milli", "devices", "has_devices", "impaired", "linked", "memory_mib", "node")

    def __init__(
        self, node: Node, cpu_milli: int, memory_mib: int, holders: Collection[int]
    ) -> None:
        self.node = node.id
        self.cpu_milli = node.inventory.cpu_milli - cpu_milli
        self.memory_mib = node.inventory.memory_mib - memory_mib
        self.has_devices = bool(node.devices)
        # Few nodes are unwell, and a step of a large gang looks at thousands.
        unwell = [nic for nic in node.nics if nic.state is not _NIC_HEALTHY]
        self.impaired = bool(unwell)
        self.linked = not unwell or any(nic.state is not NicState.FAULTY for nic in node.nics)
        self.devices: dict[str, list[int]] = {}
        usable = [each for each in node.devices if each.state is not _DEVICE_FAULTY]
        if len(usable) > 1:
            usable.sort(key=_healthy_first)
        for device in usable:
            indices = self.devices.setdefault(device.spec.model, [])
            if device.spec.index not in holders:
                indices.append(device.spec.index)

    def same_as(self, other: Free) -> bool:
        """Whether the index would not change."""
        return (
            self.devices == other.devices
            and self.cpu_milli == other.cpu_milli
            and self.memory_mib == other.memory_mib
            and self.linked is other.linked
            and self.impaired is other.impaired
        )


class Taken:
    """One member's share, and what the node had before it was taken."""

    __slots__ = ("count", "cpu_milli", "indices", "memory_mib", "model", "node")

    def __init__(
        self,
        node: NodeId,
        cpu_milli: int,
        memory_mib: int,
        model: str | None,
        indices: list[int],
        count: int,
    ) -> None:
        self.node, self.cpu_milli, self.memory_mib = node, cpu_milli, memory_mib
        self.model, self.indices, self.count = model, indices, count

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The devices taken, whole."""
        return tuple([Grant(index, WHOLE_DEVICE_MILLI) for index in self.indices[: self.count]])


class Capacity:
    """The index. `version` grows whenever some node may have more room than before; `grown` says which nodes did."""

    def __init__(self) -> None:
        self.version = 0
        self._free: dict[NodeId, Free] = {}
        self._by_model: dict[str, list[Listed]] = {}
        self._by_cpu: list[tuple[bool, int, NodeId]] = []
        self._grown: list[NodeId] = []

    def refresh(self, cluster: Cluster, node_id: NodeId) -> bool:
        """Bring one node up to date with the fold; whether it was open before and is no more."""
        before = self._free.get(node_id)
        node = cluster.nodes.get(node_id)
        if node is None or not node.open:
            if before is not None:
                self._unlist(self._free.pop(node_id))
            return before is not None
        usage = cluster.usage[node_id]
        free = Free(node, usage.cpu_milli, usage.memory_mib, usage.holders)
        if before is not None:
            if free.same_as(before):
                return False  # Most that is touched: a run began, or the plan was recorded as it was made.
            self._unlist(before)
        self._free[node_id] = free
        self._list(free)
        if before is None or _has_more(free, before):
            self._grow(node_id)
        return False

    def grown_since(self, version: int) -> list[NodeId]:
        """Nodes that may have more room than at `version`, oldest first, with repeats."""
        return self._grown[version - self.version :] if version < self.version else []

    def remembers(self, version: int) -> bool:
        """Whether `grown_since(version)` is the whole truth."""
        return self.version - version <= len(self._grown)

    def fits(self, node: NodeId, need: Resources) -> bool:
        """Whether one member fits on this node now."""
        free = self._free.get(node)
        return (
            free is not None
            and _fits(free, need)
            and bool(not need.devices or _model_for(free, need))
        )

    def tightest(
        self, need: Resources, *, linked: bool, without: Collection[NodeId] = _NO_NODES
    ) -> NodeId | None:
        """The node that one member leaves least room on, or None. `linked`: it must reach others by a working NIC."""
        if not need.devices:
            return self._tightest_cpu(need, linked=linked, without=without)
        best: Listed | None = None
        for model in need.device_models or tuple(sorted(self._by_model)):
            for entry in self._candidates(model, need):
                if best is not None and entry >= best:
                    break
                node = entry[-1]
                free = self._free[node]
                if _fits(free, need) and node not in without and (free.linked or not linked):
                    best = entry
                    break
        return best[-1] if best else None

    def take(self, node: NodeId, need: Resources) -> Taken:
        """Hold one member's share of a node for the plan at hand; `put_back` or `refresh` undoes it."""
        free = self._free[node]
        model = _model_for(free, need) if need.devices else None
        assert model is not None or not need.devices, f"{node} has no {need.devices} free devices"
        taken = Taken(
            node,
            free.cpu_milli,
            free.memory_mib,
            model,
            free.devices[model] if model else [],
            need.devices,
        )
        self._unlist(free)
        if model is not None:
            free.devices[model] = taken.indices[need.devices :]
        free.cpu_milli -= need.cpu_milli
        free.memory_mib -= need.memory_mib
        self._list(free)
        return taken

    def put_back(self, taken: Taken) -> None:
        """Undo the latest `take` of its node that is not yet undone."""
        free = self._free[taken.node]
        self._unlist(free)
        free.cpu_milli, free.memory_mib = taken.cpu_milli, taken.memory_mib
        if taken.model is not None:
            free.devices[taken.model] = taken.indices
        self._list(free)

    def _candidates(self, model: str, need: Resources) -> Iterator[Listed]:
        entries = self._by_model.get(model, [])
        for at in range(bisect_left(entries, (need.devices, False, 0, "")), len(entries)):
            yield entries[at]

    def _tightest_cpu(
        self, need: Resources, *, linked: bool, without: Collection[NodeId]
    ) -> NodeId | None:
        entries = self._by_cpu
        for has_devices in (False, True):
            for at in range(bisect_left(entries, (has_devices, need.cpu_milli, "")), len(entries)):
                entry = entries[at]
                if entry[0] is not has_devices:
                    break
                free = self._free[entry[2]]
                if (
                    free.memory_mib >= need.memory_mib
                    and entry[2] not in without
                    and (free.linked or not linked)
                ):
                    return entry[2]
        return None

    def _grow(self, node: NodeId) -> None:
        if len(self._grown) >= _GROWTH_KEPT:
            self._grown.clear()
        self.version += 1
        self._grown.append(node)

    def _list(self, free: Free) -> None:
        for model, indices in free.devices.items():
            insort(self._by_model.setdefault(model, []), _listed(free, indices))
        insort(self._by_cpu, (free.has_devices, free.cpu_milli, free.node))

    def _unlist(self, free: Free) -> None:
        for model, indices in free.devices.items():
            entries = self._by_model[model]
            del entries[bisect_left(entries, _listed(free, indices))]
        del self._by_cpu[bisect_left(self._by_cpu, (free.has_devices, free.cpu_milli, free.node))]


def _healthy_first(device: Device) -> tuple[bool, int]:
    """Healthy before degraded, then by index."""
    return device.state is not DeviceState.HEALTHY, device.spec.index


def _listed(free: Free, indices: list[int]) -> Listed:
    return len(indices), free.impaired, free.cpu_milli, free.node


def _fits(free: Free, need: Resources) -> bool:
    return free.cpu_milli >= need.cpu_milli and free.memory_mib >= need.memory_mib


def _model_for(free: Free, need: Resources) -> str | None:
    """Of the models that would do, the one with least left over."""
    enough = [
        (len(indices), model)
        for model, indices in free.devices.items()
        if len(indices) >= need.devices and (not need.device_models or model in need.device_models)
    ]
    return min(enough)[1] if enough else None


def _has_more(after: Free, before: Free) -> bool:
    return (
        after.cpu_milli > before.cpu_milli
        or after.memory_mib > before.memory_mib
        or after.linked > before.linked
        or any(
            len(indices) > len(before.devices.get(model, ()))
            for model, indices in after.devices.items()
        )
    )
