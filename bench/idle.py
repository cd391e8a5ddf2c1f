"""A cell at rest: CPU and memory of `tidemilld up` with its agent, all processes together."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Final

from bench._cell import MeasuredCell
from bench.registry import Measured, at_most

_SECONDS: Final = {"small": 15, "full": 60}
_SETTLE_S: Final = 5.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    parser.add_argument(
        "--seconds", type=int, help="how long to watch (default: 15 or 60 by --scale)"
    )


def run(options: argparse.Namespace) -> Measured:
    """Start it, let it settle, watch it do nothing."""
    seconds = options.seconds or _SECONDS[options.scale]
    with MeasuredCell(agents=1, flags=("--fake-gpus", "8xH100")) as cell:
        time.sleep(_SETTLE_S)
        pids = {pid: name.removeprefix("services.") for pid, name in cell.pids().items()}
        before = {pid: _cpu_s(pid) for pid in pids}
        time.sleep(seconds)
        cpu = {pid: 100 * (_cpu_s(pid) - before[pid]) / seconds for pid in pids}
        rss = {pid: _kib(pid, "status", "VmRSS:") / 1024 for pid in pids}
        pss = {pid: _kib(pid, "smaps_rollup", "Pss:") / 1024 for pid in pids}
    cpu_percent, rss_mib = round(sum(cpu.values()), 2), round(sum(rss.values()), 1)
    return Measured(
        figures={
            "cpu_percent": cpu_percent,
            "rss_mib": rss_mib,
            "pss_mib": round(sum(pss.values()), 1),
            "by_process": {
                f"{name}": {"cpu_percent": round(cpu[pid], 2), "rss_mib": round(rss[pid], 1)}
                for pid, name in pids.items()
            },
        },
        bars={"cpu_percent": at_most(cpu_percent, 2), "rss_mib": at_most(rss_mib, 250)},
        params={"seconds": seconds},
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _kib(pid: int, file: str, key: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text(encoding="ascii").splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise ValueError(f"/proc/{pid}/{file} has no {key}")
