"""What a node says it has: declared devices, interfaces, this host."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.agent.inventory import (
    Overrides,
    cpu_milli,
    declared,
    memory_mib,
    model_name,
    nics,
    nvidia,
    own_address,
    probe,
    take,
)
from statemachines.values import DeviceSpec, NicSpec


def test_declared_devices_are_numbered_through_and_labelled_as_simulated() -> None:
    found = declared(("2xH100", "1xA100"))
    assert [(dev.index, dev.model, dev.simulated) for dev in found] == [
        (0, "H100", True),
        (1, "H100", True),
        (2, "A100", True),
    ]
    assert len({device.uuid for device in found}) == 3


@pytest.mark.parametrize("text", ["", "8", "xH100", "0xH100", "8x", "-1xH100", "8xH 100", "1e3xA"])
def test_a_declaration_that_makes_no_sense_is_explained(text: str) -> None:
    with pytest.raises(ValueError, match="such as 8xH100"):
        declared((text,))


def test_a_node_has_a_bounded_number_of_devices() -> None:
    with pytest.raises(ValueError, match="at most 1024"):
        declared(("1000xH100", "25xH100"))


def test_this_host_is_described_and_overrides_win() -> None:
    found = take(Overrides(), gateway_host="127.0.0.1")
    assert (found.cpu_milli > 0, found.memory_mib > 0, bool(found.boot_id)) == (True, True, True)
    said = take(Overrides("h", 5, 6, ("1xH100",), (("zone", "a"),)), gateway_host="127.0.0.1")
    assert (said.address, said.cpu_milli, said.memory_mib) == ("h", 5, 6)
    labels = dict(said.labels)
    assert (labels["zone"], labels["tidemill.dev/simulated-devices"]) == ("a", "true")
    assert "tidemill.dev/simulated-devices" not in dict(found.labels)


def test_behind_a_gateway_on_loopback_a_node_is_reached_on_loopback() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("no.such.host.invalid") == socket.gethostname()


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_a_product_is_called_by_the_model_that_people_ask_for(product: str, model: str) -> None:
    assert model_name(product) == model


def interface(root: Path, name: str, *, hardware: bool = True, **files: str) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    for file, text in ({"type": "1", "operstate": "up"} | files).items():
        (folder / file).write_text(f"{text}\n")
    if hardware:
        (folder / "device").mkdir()


def test_interfaces_with_hardware_are_listed_with_speed_state_and_kind(tmp_path: Path) -> None:
    interface(tmp_path, "ib0", type="32", speed="400000")
    interface(tmp_path, "eth1", operstate="down", speed="-1")
    interface(tmp_path, "docker0", hardware=False)
    interface(tmp_path, "lo", hardware=False, operstate="unknown")
    assert nics(root=tmp_path) == (
        NicSpec("eth1", 0, up=False, kind="ethernet"),
        NicSpec("ib0", 400_000, up=True, kind="infiniband"),
        NicSpec("lo", 0, up=True, kind="loopback"),
    )
    assert nics(root=tmp_path / "none") == ()


def test_interfaces_can_be_named_and_must_exist(tmp_path: Path) -> None:
    interface(tmp_path, "veth0", hardware=False)
    assert [nic.name for nic in nics(["veth0"], tmp_path)] == ["veth0"]
    for name in ("veth1", "../veth0", ""):
        with pytest.raises(ValueError, match="no such interface"):
            nics([name], tmp_path)


def test_declared_devices_always_answer_a_probe_and_missing_ones_do_not() -> None:
    assert probe(declared(("2xH100",))) == ()
    gone = DeviceSpec(1, "H100", "GPU-gone")
    assert [index for index, _ in probe([gone])] == [1]


class Nvml:
    """A driver with four GPUs, of which some have fallen off the bus."""

    NVMLError = RuntimeError

    def __init__(self, *, dead: tuple[int, ...] = (), mute: tuple[str, ...] = ()) -> None:
        self.dead, self.mute = dead, mute
        self.open = 0

    def _answer(self, name: str, value: Any) -> Any:
        if name in self.mute:
            raise self.NVMLError(f"{name}: GPU is lost")
        return value

    def nvmlInit(self) -> None:
        self._answer("nvmlInit", None)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1
        self._answer("nvmlShutdown", None)

    def nvmlDeviceGetCount(self) -> int:
        return int(self._answer("nvmlDeviceGetCount", 4))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.dead:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return bytes(self._answer("nvmlDeviceGetName", b"NVIDIA H100 80GB HBM3"))

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return str(self._answer("nvmlDeviceGetUUID", f"GPU-{handle}"))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self._answer("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=80 << 30))


def test_a_gpu_off_the_bus_costs_itself_and_no_other() -> None:
    whole = nvidia(Nvml())
    assert whole[1] == DeviceSpec(1, "H100", "GPU-1", 81_920)
    sick = Nvml(dead=(1,))
    assert nvidia(sick) == (whole[0], *whole[2:])
    assert probe(whole, sick) == ((1, "H100 GPU-1 no longer answers to NVML"),)
    assert sick.open == 0


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetUUID"])
def test_a_driver_that_does_not_answer_has_no_gpus(call: str) -> None:
    mute = Nvml(mute=(call,))
    assert nvidia(mute) == ()
    assert [index for index, _ in probe(nvidia(Nvml()), mute)] == [0, 1, 2, 3]
    assert mute.open == 0


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo", "nvmlShutdown"])
def test_what_a_driver_cannot_say_of_a_living_gpu_does_not_cost_it(call: str) -> None:
    assert [device.index for device in nvidia(Nvml(mute=(call,)))] == [0, 1, 2, 3]


def test_a_limit_of_the_control_group_bounds_what_is_offered(tmp_path: Path) -> None:
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    whole = memory_mib(tmp_path)
    (tmp_path / "fs/cgroup/memory.max").write_text(f"{512 << 20}\n")
    (tmp_path / "fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert (memory_mib(tmp_path), cpu_milli(tmp_path)) == (512, 500)
    (tmp_path / "fs/cgroup/memory.max").write_text("max\n")
    (tmp_path / "fs/cgroup/cpu.max").write_text("max 100000\n")
    assert memory_mib(tmp_path) == whole
