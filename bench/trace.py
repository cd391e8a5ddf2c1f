"""Replay of Alibaba's openb pod list through a whole cell: real gateway, log and leader, simulated nodes.

All 1,523 nodes with their CPU, memory and devices (simulated); pods in the order of their arrival, with arrivals and
lifetimes compressed by one factor. A share of a device is rounded up to one device until sharing exists. At the end
every pod has been placed or waits with a reason. Data: TIDEMILL_DATA/openb.
"""

from __future__ import annotations

import argparse
import collections
import csv
import gzip
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from bench._cell import MeasuredCell, attach
from bench.registry import Bar, Measured
from simulation.fleet import COMMAND, NodeShape
from tidemill import Client, job_request
from tidemill.v1 import job_service_pb2, views_pb2

_WITHIN_S: Final = {"small": 20.0, "full": 120.0}
_PODS: Final = {"small": 1_000, "full": 1_000_000}
_SETTLE_S: Final = 60.0


class Pod(msgspec.Struct, frozen=True):
    """One line of the list; times in seconds from the trace's start, `ended_s` past its end for pods that stay."""

    name: str
    cpu_milli: int
    memory_mib: int
    devices: int
    shared: bool
    models: tuple[str, ...]
    created_s: int
    ended_s: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options."""
    parser.add_argument(
        "--data", type=Path, help="directory that holds openb/ (default: TIDEMILL_DATA)"
    )
    parser.add_argument(
        "--within-s", type=float, help="compress all arrivals into this many seconds"
    )


def run(options: argparse.Namespace) -> Measured:
    """Start a cell, attach the nodes, submit the pods as they come, and count."""
    data = options.data or Path(os.environ["TIDEMILL_DATA"])
    within_s = options.within_s or _WITHIN_S[options.scale]
    shapes = list(nodes(data / "openb" / "openb_node_list_all_node.csv"))
    listed = list(pods(data / "openb" / "openb_pod_list_default.csv.gz"))[: _PODS[options.scale]]
    factor = max(pod.created_s for pod in listed) / within_s
    with MeasuredCell(flags=("--schedulers", "1")) as cell:
        attach(cell, shapes)
        with cell.client() as client:
            began = time.monotonic()
            refused = _submit(client, listed, factor, began)
            views = _settled(client, len(listed) - refused)
            seconds = time.monotonic() - began
            verified = _verified(client)
    placed = [view for view in views if view.attempts]
    waiting = [view for view in views if not view.attempts]
    unexplained = [view for view in waiting if not view.reason.code]
    waits_ms = sorted(view.attempts[0].placed_at_ms - view.admitted_at_ms for view in placed)
    return Measured(
        figures={
            "pods": len(views),
            "placed": len(placed),
            "waiting": len(waiting),
            "waiting_by_reason": dict(collections.Counter(view.reason.code for view in waiting)),
            "shares_rounded_up": sum(pod.shared for pod in listed),
            "refused": refused,
            "seconds": round(seconds, 1),
            "admitted_to_placed_p50_ms": waits_ms[len(waits_ms) // 2],
            "admitted_to_placed_p99_ms": waits_ms[len(waits_ms) * 99 // 100],
            "log_verified": verified,
        },
        bars={
            "every_pod_placed_or_explained": Bar(len(unexplained), "== 0", not unexplained),
            "log_verified": Bar(verified, "== 1", verified),
        },
        params={
            "nodes": len(shapes),
            "devices": sum(shape.devices for shape in shapes),
            "compression": round(factor),
        },
    )


def nodes(file: Path) -> Iterator[NodeShape]:
    """The node list."""
    with file.open(newline="", encoding="ascii") as lines:
        for row in csv.DictReader(lines):
            yield NodeShape(
                row["sn"],
                int(row["cpu_milli"]),
                int(row["memory_mib"]),
                int(row["gpu"]),
                row["model"] or "none",
            )


def pods(file: Path) -> Iterator[Pod]:
    """The pod list, by arrival."""
    with gzip.open(file, "rt", newline="", encoding="ascii") as lines:
        rows = sorted(
            csv.DictReader(lines), key=lambda row: (int(row["creation_time"]), row["name"])
        )
    for row in rows:
        yield Pod(
            row["name"],
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["num_gpu"]),
            int(row["num_gpu"]) > 0 and int(row["gpu_milli"]) < 1000,
            tuple(model for model in row["gpu_spec"].split("|") if model),
            int(row["creation_time"]),
            int(row["deletion_time"] or 10**9),
        )


def request(pod: Pod, factor: float) -> job_service_pb2.SubmitJobRequest:
    """The pod as a job that lasts its compressed lifetime."""
    job = job_request(
        {
            "name": pod.name,
            "command": [COMMAND, f"{(pod.ended_s - pod.created_s) / factor:.3f}"],
            "cpu": 1,
        }
    )
    need = job.spec.roles[0].resources
    need.cpu_milli, need.memory_mib, need.devices = pod.cpu_milli, pod.memory_mib, pod.devices
    need.device_models[:] = pod.models
    job.request_id = pod.name
    return job


def _submit(client: Client, listed: list[Pod], factor: float, began: float) -> int:
    """Send each pod when its time has come; how many were refused."""

    def paced() -> Iterator[job_service_pb2.SubmitJobRequest]:
        for pod in listed:
            wait_s = pod.created_s / factor - (time.monotonic() - began)
            if wait_s > 0:
                time.sleep(wait_s)
            yield request(pod, factor)

    refused = 0
    for _, answer in client.submit_many(paced(), give_up_after_s=300.0):
        refused += answer.status == job_service_pb2.SUBMIT_STATUS_REFUSED
    return refused


def _settled(client: Client, count: int) -> list[views_pb2.JobView]:
    """All jobs, once each was placed at some time or has a reason."""
    ends = time.monotonic() + _SETTLE_S
    while True:
        views = list(client.jobs(job_service_pb2.JobFilter(all=True)))
        decided = [view for view in views if view.attempts or view.reason.code]
        if len(decided) >= count or time.monotonic() > ends:
            return views
        time.sleep(0.5)


def _verified(client: Client) -> bool:
    last = None
    for progress in client.verify_log():
        last = progress
    return bool(last and last.done and last.ok)
