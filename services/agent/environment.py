"""What a run's processes find in their environment. docs/reference/environment.md lists it for users.

Pure. The agent's own settings and credentials are never passed on: only the host's variables in PASSED, then the
job's, then ours, which win.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from services.agent.orders import Order
from services.runtime.executor import Environment
from statemachines.values import DeviceSpec, Inventory

PASSED: Final = (
    "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER",
)  # fmt: skip
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Surroundings(msgspec.Struct, frozen=True):
    """What all runs of a node share."""

    cell: str
    node: str
    # Where trainers reach a gateway; "tls://HOST:PORT" where it speaks TLS.
    gateway: str
    inventory: Inventory
    # Checkpoints of jobs that name no place of their own, and what can load them from there.
    checkpoint_root: str
    checkpoint_reach: str
    host: Environment = ()
    # A file with the CA certificates to trust; empty: those of the host.
    ca: str = ""


def host_environment(environ: Mapping[str, str]) -> Environment:
    """What of the agent's own environment a job may have."""
    found = {name: environ[name] for name in PASSED if name in environ}
    return tuple(({"PATH": DEFAULT_PATH} | found).items())


def checkpoint_directory(order: Order, root: str) -> str:
    """This attempt's own prefix: no other attempt writes below it."""
    return f"{root.rstrip('/')}/{order.job}/a{order.attempt}"


def environments(
    order: Order, around: Surroundings, *, job: Mapping[str, str], checkpoint_root: str
) -> tuple[Environment, ...]:
    """One environment for each process of the member. `checkpoint_root` empty: the node's own."""
    shared = dict(around.host) | dict(job)
    shared |= _devices(order, around.inventory.devices)
    shared |= _tidemill(order, around, checkpoint_root)
    return tuple(tuple((shared | _ranks(order, local)).items()) for local in range(order.processes))


def _ranks(order: Order, local: int) -> dict[str, str]:
    """As torchrun names them."""
    rank = order.first_global_rank + local
    return {
        "MASTER_ADDR": order.master_address,
        "MASTER_PORT": str(order.master_port),
        "WORLD_SIZE": str(order.world_size),
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(order.processes),
        "NODE_RANK": str(order.rank),
        "GROUP_RANK": str(order.rank),
        "GROUP_WORLD_SIZE": str(order.members),
        "ROLE_NAME": order.role,
        "TIDEMILL_RANK": str(rank),
    }


def _devices(order: Order, devices: tuple[DeviceSpec, ...]) -> dict[str, str]:
    """Devices that were granted, and no others: a run without any sees none."""
    known = {device.index: device for device in devices}
    granted = [known[grant.index] for grant in order.devices if grant.index in known]
    ascend = [device for device in granted if is_ascend(device.model)]
    nvidia = [device for device in granted if not is_ascend(device.model)]
    simulated = [str(device.index) for device in granted if device.simulated]
    found = {
        "CUDA_VISIBLE_DEVICES": ",".join(_cuda_name(device) for device in nvidia),
        "ASCEND_RT_VISIBLE_DEVICES": ",".join(str(device.index) for device in ascend),
        "TIDEMILL_DEVICES": ",".join(str(device.index) for device in granted),
    }
    if simulated:
        found["TIDEMILL_SIMULATED_DEVICES"] = ",".join(simulated)
    return found


def is_ascend(model: str) -> bool:
    """Whether a device of this model is an Ascend NPU."""
    return model.lower().startswith(("ascend", "910", "310"))


def _cuda_name(device: DeviceSpec) -> str:
    """By uuid where known: indices depend on CUDA_DEVICE_ORDER, uuids do not."""
    return str(device.index) if device.simulated else device.uuid or str(device.index)


def _tidemill(order: Order, around: Surroundings, checkpoint_root: str) -> dict[str, str]:
    root = checkpoint_root or around.checkpoint_root
    reach = "cell" if checkpoint_root else around.checkpoint_reach
    secure = around.gateway.startswith("tls://")
    return {
        "TIDEMILL_CELL": around.cell,
        "TIDEMILL_NODE": around.node,
        "TIDEMILL_GATEWAY": around.gateway,
        "TIDEMILL_CA": around.ca if secure else "",
        "TIDEMILL_TOKEN": order.token,
        "TIDEMILL_JOB": order.job,
        "TIDEMILL_JOB_NAME": order.name,
        "TIDEMILL_ATTEMPT": str(order.attempt),
        "TIDEMILL_MEMBER": str(order.rank),
        "TIDEMILL_MEMBERS": str(order.members),
        "TIDEMILL_ROLE": order.role,
        "TIDEMILL_NODES": ",".join(order.gang_nodes),
        "TIDEMILL_GRACE_MS": str(order.grace_ms),
        "TIDEMILL_RESUME_STEP": str(order.resume.step),
        "TIDEMILL_RESUME_URI": order.resume.uri,
        "TIDEMILL_RESUME_MANIFEST": order.resume.manifest,
        "TIDEMILL_CHECKPOINT_DIR": checkpoint_directory(order, root),
        "TIDEMILL_CHECKPOINT_REACH": reach,
    }
