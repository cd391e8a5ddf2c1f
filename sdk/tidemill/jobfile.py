"""A job as people write it, in a file or as flags, turned into a submission. Nothing is sent from here.

What a job may ask for is judged by the cell; here only what can be told without one: spelling, types, units.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tidemill import schema, units
from tidemill.schema import Rows, Table
from tidemill.source import Document, FileError, read_documents, read_json_line
from tidemill.v1 import common_pb2 as common_pb
from tidemill.v1 import job_service_pb2 as job_pb
from tidemill.v1 import requests_pb2

INT64_MAX: Final = 2**63 - 1
DEFAULT_QUEUE: Final = "default"
_duration = schema.bounded(units.duration_ms, INT64_MAX)
_cpu = schema.bounded(units.cpu_milli, INT64_MAX)


def _duration_or_never(value: Any) -> int:
    return -1 if value == "never" else int(_duration(value))


def _command(value: Any) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else schema.texts(value)


_RESOURCES: Final = {
    "cpu": _cpu,
    "memory": schema.bounded(units.memory_mib, INT64_MAX),
    "gpus": schema.integer(0),
    "gpu_models": schema.texts,
}
_ALIASES: Final = {
    "gpu": "gpus",
    "devices": "gpus",
    "gpu_model": "gpu_models",
    "cpus": "cpu",
    "mem": "memory",
}
_ROLE: Final = Table(
    {"name": schema.text, "count": schema.integer(1), "processes": schema.integer(0), **_RESOURCES},
    aliases=_ALIASES,
)
_RETRY: Final = Table(
    {
        "max_attempts": schema.integer(-1),
        "max_attempts_without_progress": schema.integer(0),
        "backoff": _duration,
        "only_infrastructure": schema.flag,
    }
)
_CHECKPOINTS: Final = Table(
    {
        "root": schema.text,
        "keep": schema.integer(0),
        "watch": Table(
            {"preset": schema.text, "directory": schema.text, "marker": schema.text},
            required=("preset", "directory"),
        ),
    }
)
JOB: Final = Table(
    {
        "id": schema.text,
        "name": schema.text,
        "queue": schema.text,
        "priority": schema.integer(-(2**31)),
        "array": schema.integer(1),
        "command": _command,
        "script": schema.text,
        "workdir": schema.text,
        "env": schema.pairs,
        "labels": schema.pairs,
        "nodes": schema.integer(1),
        "processes": schema.integer(0),
        "roles": Rows(_ROLE),
        "retry": _RETRY,
        "checkpoints": _CHECKPOINTS,
        "overlap_safe": schema.flag,
        "hold": schema.flag,
        "fence_after": _duration_or_never,
        "grace": _duration,
        "hang_after": _duration,
        "time_limit": _duration,
        **_RESOURCES,
    },
    aliases={**_ALIASES, "args": "command", "environment": "env", "held": "hold"},
)
_limit = schema.integer(-1, INT64_MAX)
QUEUE: Final = Table(
    {
        "queue": schema.text,
        "parent": schema.text,
        "gpus": _limit,
        "cpu": _cpu,
        "jobs": _limit,
    },
    required=("queue",),
    aliases={"name": "queue", "devices": "gpus", "device_limit": "gpus", "job_limit": "jobs"},
)
QUEUES: Final = Table({"queues": Rows(QUEUE)}, required=("queues",))


def job_request(job: Mapping[str, Any], *, name: str = "the job") -> job_pb.SubmitJobRequest:
    """A submission from a mapping as in a job file. Raises FileError with every fault."""
    return from_document(Document(name, job))


def read_jobs(path: Path) -> list[job_pb.SubmitJobRequest]:
    """The submissions of a job file. Raises FileError with positions."""
    return [from_document(document) for document in read_documents(path)]


def read_json_lines(name: str, lines: Iterable[str]) -> Iterator[job_pb.SubmitJobRequest]:
    """One submission a line, as the lines come. Raises FileError at the first line at fault."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield from_document(read_json_line(name, number, line))


def read_queues(path: Path) -> list[requests_pb2.ApplyQueue]:
    """The queues of a file: a list under "queues", or one queue a YAML document."""
    queues = []
    for document in read_documents(path):
        if "queues" in document.value:
            rows = schema.read(document, QUEUES, "queue file")["queues"]
        else:
            rows = [schema.read(document, QUEUE, "queue file")]
        queues += [_queue(row) for row in rows]
    return queues


def from_document(document: Document) -> job_pb.SubmitJobRequest:
    """The submission that a document describes."""
    values = schema.read(document, JOB, "job")
    _check_whole(document, values)
    checkpoints = values.get("checkpoints", {})
    launch = common_pb.Launch(
        argv=values.get("command", []),
        env=values.get("env", {}),
        workdir=values.get("workdir", ""),
        script=_script(values.get("script", "")),
        checkpoint_root=checkpoints.get("root", ""),
    )
    if watch := checkpoints.get("watch"):
        launch.marker.CopyFrom(common_pb.MarkerWatch(**watch))
    return job_pb.SubmitJobRequest(
        request_id=values.get("id", ""),
        spec=_spec(values),
        launch=launch,
        count=values.get("array", 0),
    )


def _check_whole(document: Document, values: Mapping[str, Any]) -> None:
    """Faults that no single key shows."""
    faults = []
    if not values.get("command") and not values.get("script"):
        faults.append(f"{document.where(())}: 'command' (or 'script') is missing")
    if "roles" in values:
        doubled = [key for key in ("nodes", "processes", *_RESOURCES) if key in values]
        faults += [
            f"{document.where((key,))}: {key!r} is given by each of 'roles' instead"
            for key in doubled
        ]
        if not values["roles"]:
            faults.append(f"{document.where(('roles',))}: 'roles' is empty")
    if faults:
        raise FileError(f"{document.name} is no valid job", faults)


def _spec(values: Mapping[str, Any]) -> common_pb.JobSpec:
    retry = values.get("retry", {})
    roles = values.get("roles") or [{**values, "count": values.get("nodes", 1), "name": ""}]
    return common_pb.JobSpec(
        name=values.get("name") or _default_name(values),
        queue=values.get("queue") or DEFAULT_QUEUE,
        priority=values.get("priority", 0),
        roles=[_role(role) for role in roles],
        retry=common_pb.RetryPolicy(
            max_attempts=retry.get("max_attempts", 0),
            max_attempts_without_progress=retry.get("max_attempts_without_progress", 0),
            backoff_ms=retry.get("backoff", 0),
            only_infrastructure=retry.get("only_infrastructure", False),
        ),
        overlap_safe=values.get("overlap_safe", False),
        held=values.get("hold", False),
        fence_after_ms=values.get("fence_after", 0),
        grace_ms=values.get("grace", 0),
        hang_after_ms=values.get("hang_after", 0),
        max_run_ms=values.get("time_limit", 0),
        labels=values.get("labels", {}),
        keep_checkpoints=values.get("checkpoints", {}).get("keep", 0),
    )


def _role(role: Mapping[str, Any]) -> common_pb.Role:
    """One processor is asked for where none is named."""
    return common_pb.Role(
        name=role.get("name", ""),
        count=role.get("count", 1),
        processes=role.get("processes", 0),
        resources=common_pb.Resources(
            cpu_milli=role.get("cpu", 1000),
            memory_mib=role.get("memory", 0),
            devices=role.get("gpus", 0),
            device_models=role.get("gpu_models", []),
        ),
    )


def _default_name(values: Mapping[str, Any]) -> str:
    """The program's own name: "train" for `python train.py`."""
    words = values.get("command", [])
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    program = Path((scripts or words or ["job"])[0]).stem
    return re.sub(r"[^A-Za-z0-9._-]", "-", program)[:63] or "job"


def _script(text: str) -> bytes:
    if text and not text.startswith("#!"):
        text = "#!/bin/sh\n" + text
    return text.encode()


def _queue(row: Mapping[str, Any]) -> requests_pb2.ApplyQueue:
    return requests_pb2.ApplyQueue(
        queue=row["queue"],
        parent=row.get("parent", ""),
        device_limit=row.get("gpus", -1),
        cpu_milli_limit=row.get("cpu", -1),
        job_limit=row.get("jobs", -1),
    )
