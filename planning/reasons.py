"""Why a job waits, in words that say what is missing and what changes it. Codes are stable; programs match on them."""

from __future__ import annotations

from statemachines.cluster import Cluster
from statemachines.job import Job
from statemachines.node import Node, ServiceState
from statemachines.queue import NO_LIMIT, Queue
from statemachines.values import Reason, Resources, Role


def backoff(job: Job, now_ms: int) -> Reason:
    """Its time has not come."""
    seconds = max(1, (job.not_before_ms - now_ms + 999) // 1000)
    return Reason("backoff", f"waits {seconds} s before attempt {job.attempt + 1}", missing=seconds)


def behind(head: Job) -> Reason:
    """A starving job ahead of it must not be passed."""
    return Reason(
        "behind_starving_job",
        f"job {head.number} ({head.id}) ahead of it has waited too long to be passed: it gets the next room",
        (head.id,),
    )


def over_device_limit(queue: Queue, used: int, wanted: int) -> Reason:
    """The queue, or one above it, may not hold that many devices."""
    missing = used + wanted - queue.device_limit
    never = f" and can never run there: it asks for {wanted}" if wanted > queue.device_limit else ""
    return Reason(
        "queue_device_limit",
        f"queue {queue.id} holds {used} of its {queue.device_limit} devices; this needs {wanted}{never}",
        (queue.id,),
        missing,
    )


def over_cpu_limit(queue: Queue, used: int, wanted: int) -> Reason:
    """The queue, or one above it, may not hold that much CPU."""
    return Reason(
        "queue_cpu_limit",
        f"queue {queue.id} holds {used / 1000:g} of its {queue.cpu_milli_limit / 1000:g} CPUs; this needs {wanted / 1000:g}",
        (queue.id,),
        used + wanted - queue.cpu_milli_limit,
    )


def no_room(cluster: Cluster, job: Job, placed: int) -> Reason:
    """Nodes that could hold it are busy, or there are not enough such nodes at all."""
    for role in job.spec.roles:
        capable = [node for node in cluster.nodes.values() if capacity_of(node, role.resources)]
        could = sum([capacity_of(node, role.resources) for node in capable if node.open])
        if could < role.count:
            return _too_few(role, could, capable)
    missing = job.spec.members - placed
    return Reason(
        "waiting_for_capacity",
        f"{placed} of {job.spec.members} members have room now; {missing} x {describe(_scarcest(job))} missing",
        missing=missing,
    )


def capacity_of(node: Node, need: Resources) -> int:
    """How many members of this need the node could hold if it were empty and healthy."""
    bounds: list[int] = []
    if need.devices:
        counts: dict[str, int] = {}
        for device in node.devices:
            counts[device.spec.model] = counts.get(device.spec.model, 0) + 1
        bounds.append(
            sum(
                [
                    n // need.devices
                    for model, n in counts.items()
                    if not need.device_models or model in need.device_models
                ]
            )
        )
    if need.cpu_milli:
        bounds.append(node.inventory.cpu_milli // need.cpu_milli)
    if need.memory_mib:
        bounds.append(node.inventory.memory_mib // need.memory_mib)
    return min(bounds) if bounds else 1_000_000


def describe(need: Resources) -> str:
    """One member's need in words."""
    parts: list[str] = []
    if need.devices:
        model = "/".join(need.device_models) or "device"
        parts.append(
            f"{need.devices} {model}{'' if need.device_models or need.devices == 1 else 's'}"
        )
    parts.append(f"{need.cpu_milli / 1000:g} CPU")
    if need.memory_mib:
        parts.append(f"{need.memory_mib} MiB")
    return " + ".join(parts)


def _scarcest(job: Job) -> Resources:
    return max(
        job.spec.roles, key=lambda role: (role.resources.devices, role.resources.cpu_milli)
    ).resources


def _too_few(role: Role, could: int, capable: list[Node]) -> Reason:
    shut = [node for node in capable if not node.open]
    if shut:
        states = sorted({_shut_why(node) for node in shut})
        return Reason(
            "capable_nodes_not_open",
            f"nodes that could hold {describe(role.resources)} are not open: {len(shut)} are {', '.join(states)}",
            tuple([node.id for node in sorted(shut, key=lambda node: node.id)[:8]]),
            role.count - could,
        )
    return Reason(
        "no_capable_nodes",
        f"the cell has room for {could} of {role.count} members that each need {describe(role.resources)}, even when "
        "empty: add such nodes, or ask for less",
        missing=role.count - could,
    )


def _shut_why(node: Node) -> str:
    return node.service.value if node.service is not ServiceState.IN_SERVICE else node.state.value


def over_limit(cluster: Cluster, job: Job, extra: dict[str, tuple[int, int]]) -> Reason | None:
    """The first queue of the line whose limit this job would pass; `extra` is what the plan at hand has given already."""
    devices, cpu_milli = job.spec.demand()
    for queue in cluster.queue_line(job.spec.queue):
        usage, (more_devices, more_cpu) = cluster.queue_usage[queue.id], extra.get(queue.id, (0, 0))
        used = usage.devices + more_devices
        if queue.device_limit != NO_LIMIT and used + devices > queue.device_limit and devices:
            return over_device_limit(queue, used, devices)
        used_cpu = usage.cpu_milli + more_cpu
        if (
            queue.cpu_milli_limit != NO_LIMIT
            and used_cpu + cpu_milli > queue.cpu_milli_limit
            and cpu_milli
        ):
            return over_cpu_limit(queue, used_cpu, cpu_milli)
    return None
