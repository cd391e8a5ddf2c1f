"""Submissions accepted per second through one gateway, streamed and unary, by 1 and by 8 clients.

Accepted: decided by the leader and in the log. There are no nodes, so nothing runs; each job waits with its reason.
Clients are processes of their own and share the machine with the cell.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.pool import Pool
from typing import Final

from bench._cell import MeasuredCell
from bench.registry import Measured, at_least
from tidemill import Client, job_request
from tidemill.v1 import job_service_pb2

_STREAMED: Final = {"small": 4_000, "full": 20_000}
_UNARY: Final = {"small": 500, "full": 2_000}
_CLIENTS: Final = 8
# Unary calls that one client has under way at once.
_IN_FLIGHT: Final = 64


def run(options: argparse.Namespace) -> Measured:
    """One cell, four loads, one after the other."""
    streamed, unary = _STREAMED[options.scale], _UNARY[options.scale]
    figures: dict[str, object] = {}
    spawn = multiprocessing.get_context("spawn")
    with MeasuredCell() as cell, spawn.Pool(_CLIENTS) as pool:
        where = str(cell.directory)
        pool.map(
            _connect, [where] * _CLIENTS
        )  # Imports and first connections are not what is measured.
        loads = (
            ("streamed_per_s", _stream, 1, streamed),
            ("streamed_8_per_s", _stream, _CLIENTS, streamed),
            ("unary_per_s", _unary, 1, unary),
            ("unary_8_per_s", _unary, _CLIENTS, unary),
        )
        for name, load, clients, jobs in loads:
            figures[name] = round(_rate(pool, load, where, clients, jobs))
        with cell.client() as client:
            figures["jobs_in_log"] = client.cell().jobs_waiting
    return Measured(
        figures=figures,
        bars={
            "streamed_per_s": at_least(_number(figures["streamed_per_s"]), 2_000),
            "unary_per_s": at_least(_number(figures["unary_per_s"]), 500),
        },
        params={
            "streamed_jobs": streamed,
            "unary_jobs": unary,
            "unary_in_flight_per_client": _IN_FLIGHT,
        },
    )


def _rate(
    pool: Pool, load: Callable[[tuple[str, int]], int], where: str, clients: int, jobs: int
) -> float:
    began = time.monotonic()
    accepted = sum(pool.map(load, [(where, jobs // clients)] * clients))
    seconds = time.monotonic() - began
    assert accepted == jobs // clients * clients, f"{accepted} of {jobs} were accepted"
    return accepted / seconds


def _connect(where: str) -> int:
    with Client(cell=where) as client:
        return client.cell().term


def _stream(task: tuple[str, int]) -> int:
    where, count = task
    with Client(cell=where, deadline_s=60.0) as client:
        answers = client.submit_many(_job() for _ in range(count))
        return sum(answer.status == job_service_pb2.SUBMIT_STATUS_ADMITTED for _, answer in answers)


def _unary(task: tuple[str, int]) -> int:
    from concurrent.futures import ThreadPoolExecutor

    where, count = task
    with (
        Client(cell=where, deadline_s=60.0) as client,
        ThreadPoolExecutor(min(_IN_FLIGHT, count)) as threads,
    ):
        answers = threads.map(lambda _: client.submit(_job()), range(count))
        return sum(answer.status == job_service_pb2.SUBMIT_STATUS_ADMITTED for answer in answers)


def _job() -> job_service_pb2.SubmitJobRequest:
    return job_request({"name": "bench", "command": ["true"], "cpu": 1, "gpus": 1})


def _number(value: object) -> float:
    assert isinstance(value, int), "a rate is a number"
    return value
