"""Control groups of runs, on the groups of this host where it lets us make any."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.runtime.adapters.cgroups import Cgroups, Limits
from services.runtime.adapters.process import ProcessExecutor, ProcessSettings
from services.runtime.executor import Launch, RunEnd
from statemachines.values import RunId
from tests.services.agent.test_process import until

RUN = "job.1.0"


@pytest.fixture
def groups() -> Iterator[Cgroups]:
    made = Cgroups(f"test-{os.getpid()}")
    if not made.make("probe", Limits()).folders:
        pytest.skip("this host lets us make no control groups")
    made.find("probe").remove()
    yield made
    made.find(RUN).kill()
    until(lambda: not made.find(RUN).pids())
    made.find(RUN).remove()
    made.close()


def test_a_process_that_joins_is_found_and_killed_with_its_group(groups: Cgroups) -> None:
    group = groups.make(RUN, Limits(cpu_milli=500, memory_mib=64, processes_max=32))
    with subprocess.Popen(["/bin/sleep", "1000"]) as member:
        for door in group.doors:
            Path(door).write_text(str(member.pid), newline="")
        assert group.pids() == {member.pid}
        group.kill()
        if not any((folder / "cgroup.kill").exists() for folder in group.folders):
            member.kill()  # Version 1 alone: the caller kills what `pids` names.
        member.wait()
    until(lambda: not group.pids())
    group.remove()
    assert groups.find(RUN).folders == ()


def test_limits_are_written_where_they_are_known(groups: Cgroups) -> None:
    group = groups.make(RUN, Limits(cpu_milli=2_000, memory_mib=64, processes_max=32))
    written = {}
    for folder in group.folders:
        for name in ("pids.max", "memory.max", "memory.limit_in_bytes", "cpu.shares", "cpu.weight"):
            if (folder / name).exists():
                written[name] = int((folder / name).read_text())
    expected = {
        "pids.max": 32,
        "memory.max": 64 << 20,
        "memory.limit_in_bytes": 64 << 20,
        "cpu.shares": 2048,
        "cpu.weight": 200,
    }
    assert written == {name: expected[name] for name in written}
    assert group.limits_processes() == ("pids.max" in written)


def test_a_group_is_made_even_when_another_agent_took_its_parent_for_left_behind(
    groups: Cgroups,
) -> None:
    first = groups.make(RUN, Limits())
    first.remove()
    Cgroups(f"other-{os.getpid()}").close()  # Takes empty folders of others away as it starts.
    assert len(groups.make(RUN, Limits()).folders) == len(first.folders)


def test_a_run_beyond_its_memory_is_killed_and_told_so(tmp_path: Path, groups: Cgroups) -> None:
    limited = groups.make(RUN, Limits(memory_mib=64))
    if not any(
        (f / "memory.oom_control").exists() or (f / "memory.events").exists()
        for f in limited.folders
    ):
        pytest.skip("this host limits no memory")  # fmt: skip
    executor = ProcessExecutor(tmp_path, ProcessSettings())
    hungry = "x = b''\nwhile True: x += bytes(8 << 20)"
    command = ("/usr/bin/env", "python3", "-c", hungry)
    environment = (("PATH", os.environ["PATH"]),)
    executor.start(Launch(RunId(RUN), command, (environment,), memory_mib=64))
    found: list[RunEnd] = []

    def ended() -> bool:
        found.extend(executor.ends(1.0))
        return bool(found)

    until(ended)
    assert found[0].signal == 9
    assert "out of memory" in found[0].message
    executor.close()
