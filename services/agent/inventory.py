"""What this node has: CPU, memory, GPUs, network interfaces, which boot. Reads the host; changes nothing.

A device that is only declared is labelled as such wherever it is seen. A host without NVML has no NVIDIA GPUs.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from statemachines.values import DeviceSpec, Inventory, NicSpec

MIB: Final = 1 << 20
SYS: Final = Path("/sys")
NETWORK: Final = SYS / "class/net"
PROC: Final = Path("/proc")
DEVICES_MAX: Final = 1024
# Above this a limit in a control group means "none".
NO_LIMIT: Final = 1 << 60
# Memory of models that people declare; others are declared without.
MEMORY_MIB: Final = {
    "A10": 24_576, "A100": 81_920, "A800": 81_920, "B200": 196_608, "H100": 81_920, "H200": 144_384, "H800": 81_920,
    "L4": 24_576, "L40S": 49_152, "T4": 16_384, "V100": 32_768, "ASCEND910B": 65_536,
}  # fmt: skip
_DECLARED: Final = re.compile(r"([1-9][0-9]{0,3})x([A-Za-z0-9][A-Za-z0-9._-]{0,63})")
_INFINIBAND: Final = "32"
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")

log = structlog.get_logger()


class Overrides(msgspec.Struct, frozen=True):
    """What an operator says instead of what is found; 0 or empty: take what is found."""

    address: str = ""
    cpu_milli: int = 0
    memory_mib: int = 0
    # "8xH100"; any declaration replaces the real devices.
    fake_gpus: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    nics: tuple[str, ...] = ()


def take(overrides: Overrides, *, gateway_host: str) -> Inventory:
    """The inventory now. Raises ValueError for a declaration that cannot be understood."""
    fakes = declared(overrides.fake_gpus)
    labels = {
        "tidemill.dev/arch": platform.machine(),
        "tidemill.dev/os": platform.system().lower(),
        "tidemill.dev/hostname": socket.gethostname()[:1024],
    }
    if fakes:
        labels["tidemill.dev/simulated-devices"] = "true"
    return Inventory(
        address=overrides.address or own_address(gateway_host),
        cpu_milli=overrides.cpu_milli or cpu_milli(),
        memory_mib=overrides.memory_mib or memory_mib(),
        devices=fakes or nvidia(),
        nics=nics(overrides.nics),
        labels=tuple(sorted((labels | dict(overrides.labels)).items())),
        boot_id=boot_id(),
        agent_version=version("tidemill-server"),
    )


def declared(declarations: Iterable[str]) -> tuple[DeviceSpec, ...]:
    """Simulated devices, numbered through all declarations."""
    found: list[DeviceSpec] = []
    for text in declarations:
        match = _DECLARED.fullmatch(text)
        if match is None:
            raise ValueError(f"--fake-gpus {text!r}: want COUNTxMODEL, such as 8xH100")
        model = match[2]
        for _ in range(int(match[1])):
            index = len(found)
            memory = MEMORY_MIB.get(model.upper(), 0)
            found.append(DeviceSpec(index, model, f"SIMULATED-{index}", memory, simulated=True))
    if len(found) > DEVICES_MAX:
        raise ValueError(
            f"--fake-gpus declares {len(found)} devices; a node has at most {DEVICES_MAX}"
        )
    return tuple(found)


def boot_id() -> str:
    """Names this boot of the host."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def cpu_milli(root: Path = SYS) -> int:
    """CPUs that this process may use: its affinity, and the quota of its control group."""
    cpus = len(os.sched_getaffinity(0)) * 1000
    v2 = _words(root / "fs/cgroup/cpu.max")
    if len(v2) == 2 and v2[0] != "max":
        return min(cpus, int(v2[0]) * 1000 // int(v2[1]))
    quota = _number(root / "fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _number(root / "fs/cgroup/cpu/cpu.cfs_period_us")
    return min(cpus, quota * 1000 // period) if quota > 0 and period > 0 else cpus


def memory_mib(root: Path = SYS) -> int:
    """Memory that this process may use: the host's, or less where its control group says so."""
    words = _words(PROC / "meminfo")
    total = int(words[words.index("MemTotal:") + 1]) * 1024
    for limit in (_number(path) for path in _memory_limits(root)):
        if 0 < limit < NO_LIMIT:
            total = min(total, limit)
    return total // MIB


def own_address(gateway_host: str) -> str:
    """Where others reach this host: the address that it uses towards the gateway, else its name."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(gateway_host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as way:
            way.connect(target)  # Of a datagram socket: sends nothing.
            return str(way.getsockname()[0])
    except OSError:
        return socket.gethostname()


def nics(names: Sequence[str] = (), root: Path = NETWORK) -> tuple[NicSpec, ...]:
    """The named interfaces; without names those with hardware, and the loopback. Raises ValueError for a missing one."""
    for name in names:
        if not name or "/" in name or not (root / name).is_dir():
            raise ValueError(f"--nics {name!r}: this host has no such interface")
    if names:
        return tuple(_nic(root / name) for name in names)
    if not root.is_dir():
        return ()
    return tuple(_nic(path) for path in sorted(root.iterdir()) if _is_hardware(path))


def _is_hardware(path: Path) -> bool:
    """Never the virtual bridges and pairs of containers."""
    return path.name == "lo" or (path / "device").exists()


def _nic(path: Path) -> NicSpec:
    loopback = path.name == "lo"
    kind = "infiniband" if _text(path / "type") == _INFINIBAND else "ethernet"
    return NicSpec(
        name=path.name,
        speed_mbps=rate_mbps(path),
        up=is_up(path),
        kind="loopback" if loopback else kind,
    )


def is_up(path: Path) -> bool:
    """Whether the interface can carry traffic now; some kinds, such as the loopback, never say more than unknown."""
    return _text(path / "operstate") in {"up", "unknown"}


def port_of(path: Path) -> Path | None:
    """The RDMA port behind an interface, such as device/infiniband/mlx5_0/ports/1; None where there is none."""
    ports = sorted((path / "device/infiniband").glob("*/ports/*"))
    number = str(_number(path / "dev_port") + 1)
    return next((port for port in ports if port.name == number), ports[0] if ports else None)


def rate_mbps(path: Path) -> int:
    """What the interface runs at now; 0 while it is down, for then a port shows its lowest."""
    if not is_up(path):
        return 0
    port = port_of(path)
    match = _RATE.match(_text(port / "rate")) if port is not None else None
    return round(float(match[1]) * 1000) if match else max(_number(path / "speed"), 0)


def nvidia(nvml: Any = None) -> tuple[DeviceSpec, ...]:
    """NVIDIA GPUs through NVML; none where its library or driver is missing. One that does not answer is left out."""
    nvml = nvml or _library()
    if nvml is None:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.debug("nvml_unavailable", error=str(error))
        return ()
    try:
        found = [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        log.error("nvml_failed", error=str(error), hint="see nvidia-smi and the kernel's log")  # noqa: TRY400
        return ()
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    return tuple(device for device in found if device is not None)


def _library() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def probe(devices: Sequence[DeviceSpec], nvml: Any = None) -> tuple[tuple[int, str], ...]:
    """Devices that no longer answer, and why. Declared ones always answer: nothing is behind them."""
    real = [device for device in devices if not device.simulated]
    if not real:
        return ()
    found = {device.uuid: device for device in nvidia(nvml)}
    return tuple(
        (device.index, f"{device.model} {device.uuid} no longer answers to NVML")
        for device in real
        if device.uuid not in found
    )


def _gpu(nvml: Any, index: int) -> DeviceSpec | None:
    """One GPU; None when it is off the bus, which must not cost the others."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
    except nvml.NVMLError as error:
        log.error("gpu_does_not_answer", device=index, error=str(error))  # noqa: TRY400
        return None
    memory_mib = 0
    with contextlib.suppress(nvml.NVMLError):  # Some have none of their own.
        memory_mib = nvml.nvmlDeviceGetMemoryInfo(handle).total // MIB
    return DeviceSpec(index, model_name(_decoded(name)), _decoded(uuid), memory_mib)


def model_name(product: str) -> str:
    """The word that people ask for: H100 of "NVIDIA H100 80GB HBM3"."""
    words = [word for word in product.replace("-", " ").split() if word not in {"NVIDIA", "Tesla"}]
    model = next((word for word in words if any(c.isdigit() for c in word)), product)
    return re.sub(r"[^A-Za-z0-9._-]", "-", model)[:64]


def _decoded(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _memory_limits(root: Path) -> list[Path]:
    own = [line.split(":", 2) for line in (PROC / "self/cgroup").read_text().splitlines()]
    paths = [root / "fs/cgroup/memory.max"]
    for _, names, path in own:
        if names == "memory":
            paths.append(root / f"fs/cgroup/memory{path}" / "memory.limit_in_bytes")
        elif not names:
            paths.append(root / f"fs/cgroup{path}" / "memory.max")
    return paths


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # Absent on this host, or a link that is down and so has no speed.
        return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.lstrip("-").isdecimal() else 0
