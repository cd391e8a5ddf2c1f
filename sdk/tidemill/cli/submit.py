"""`tidemill submit`: a command, a script, a job file, or a stream of jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tidemill.cli import flags
from tidemill.cli.frame import (
    Format,
    Output,
    SubmitCommand,
    command,
    connect,
    detachable,
    say,
)
from tidemill.cli.text import visible
from tidemill.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from tidemill.client import Client
    from tidemill.v1 import job_service_pb2 as job_pb

JOB_FILES = {".yaml", ".yml", ".toml", ".json"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "submit",
        "tidemill submit --gpus 8 --nodes 2 --watch -- python train.py --lr 3e-4",
        "tidemill submit job.yaml --id nightly-2026-11-30",
        "generate-jobs | tidemill submit - -o name",
        cls=SubmitCommand,
    )(submit)


def submit(
    ctx: typer.Context, file: flags.File = "", *,
    name: flags.Name = "", queue: flags.Queue = "", priority: flags.Priority = "",
    nodes: flags.Nodes = "", gpus: flags.Gpus = "", gpu_model: flags.GpuModel = None,
    cpu: flags.Cpu = "", memory: flags.Memory = "", processes: flags.Processes = "",
    array: flags.Array = "", env: flags.Env = None, label: flags.Label = None,
    workdir: flags.Workdir = "", time_limit: flags.TimeLimit = "",
    hang_after: flags.HangAfter = "", grace: flags.Grace = "",
    max_attempts: flags.MaxAttempts = "", checkpoints: flags.Checkpoints = "",
    overlap_safe: flags.OverlapSafe = False, hold: flags.Hold = False, id_: flags.Key = "",
    watch: flags.Watch = False, dry_run: flags.DryRun = False, output: Output = Format.TABLE,
) -> None:  # fmt: skip
    """Submit a job: flags and a command after --, a script, or a job file that flags override."""
    said = {
        "name": name, "queue": queue, "priority": priority, "nodes": nodes, "gpus": gpus, "gpu_models": gpu_model,
        "cpu": cpu, "memory": memory, "processes": processes, "array": array, "workdir": workdir,
        "time_limit": time_limit, "hang_after": hang_after, "grace": grace, "overlap_safe": overlap_safe,
        "hold": hold, "id": id_, "env": _pairs("--env", env), "labels": _pairs("--label", label),
        "retry": {"max_attempts": max_attempts} if max_attempts else None,
        "checkpoints": {"root": checkpoints} if checkpoints else None,
    }  # fmt: skip
    given = {key: value for key, value in said.items() if value}
    words: list[str] = ctx.meta.get("tidemill.command", [])
    if file == "-":
        _submit_stream(ctx, output, alone=not (given or words or watch or dry_run))
        return
    requests = list(_requests(file, words, given))
    if dry_run:
        _show_requests(requests)
    else:
        _submit_all(ctx, requests, output, watch=watch)


def _show_requests(requests: list[job_pb.SubmitJobRequest]) -> None:
    from tidemill.cli.output import plain, write_json

    shown = [plain(request) for request in requests]
    write_json(shown[0] if len(shown) == 1 else shown)


def _submit_all(
    ctx: typer.Context, requests: list[job_pb.SubmitJobRequest], output: Format, *, watch: bool
) -> None:
    answers: list[tuple[job_pb.SubmitJobRequest, job_pb.SubmitJobResponse]] = []
    with connect(ctx) as client:
        try:
            for request in requests:
                answers.append((request, client.submit(request)))  # noqa: PERF401  # those before a failure are shown
        finally:
            if answers:
                _show_answers(answers, output)
        if watch:
            jobs = [answer.job for _, answer in answers]
            with detachable(ctx, f"jobs -w {' '.join(jobs)}"):
                from tidemill.cli.follow import follow_to_end

                follow_to_end(client, jobs, output)
        elif output in {Format.TABLE, Format.WIDE}:
            say(f"next: tidemill why {answers[-1][1].job}")


def _requests(
    file: str, words: list[str], given: Mapping[str, Any]
) -> Iterator[job_pb.SubmitJobRequest]:
    """The submissions that the command line means."""
    from tidemill import jobfile
    from tidemill.source import Document, read_documents

    here = {"workdir": str(Path.cwd())}
    if file and Path(file).suffix.lower() in JOB_FILES:
        command_given = {"command": words} if words else {}
        for document in read_documents(Path(file)):
            merged = {**here, **document.value, **_merged(document.value, given), **command_given}
            yield jobfile.from_document(Document(document.name, merged, document.lines))
        return
    job: dict[str, Any] = {**here, **given}
    if file:
        job = {"name": Path(file).stem, **job, "script": _read_script(file), "command": words}
    elif words:
        job["command"] = words
    else:
        raise UsageError(
            "nothing to submit",
            why="give a job file, a script, or a command after --",
            next_command="tidemill submit --help",
        )
    yield jobfile.from_document(Document("the command line", job))


def _merged(document: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Flags win; those that are mappings add to the file's instead of replacing them."""
    merged = dict(given)
    for key in ("env", "labels", "retry", "checkpoints"):
        if key in given and isinstance(document.get(key), Mapping):
            merged[key] = {**document[key], **given[key]}
    return merged


def _read_script(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        hint = f"tidemill submit -- {file}"
        raise UsageError(
            f"cannot read the script {file}", why=str(why), next_command=hint
        ) from error


def _pairs(flag: str, given: list[str] | None) -> dict[str, str]:
    import os

    pairs = {}
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals and name not in os.environ:
            raise UsageError(f"{flag} {item}", why=f"{name} is not set here; write {name}=VALUE")
        pairs[name] = value if equals else os.environ[name]
    return pairs


def _show_answers(
    answers: list[tuple[job_pb.SubmitJobRequest, job_pb.SubmitJobResponse]], output: Format
) -> None:
    from tidemill.cli.output import plain, write_csv_line, write_json

    if output is Format.NAME:
        print("\n".join(answer.job for _, answer in answers))
        return
    if output is Format.JSON:
        shown = [plain(answer) for _, answer in answers]
        write_json(shown[0] if len(shown) == 1 else shown)
        return
    for request, answer in answers:
        words = _words(request, answer)
        if output is Format.CSV:
            write_csv_line(words)
        else:
            print(visible("  ".join(word for word in words if word)))


def _words(request: job_pb.SubmitJobRequest, answer: job_pb.SubmitJobResponse) -> list[str]:
    """Id, number once there is one, status, name."""
    number = str(answer.number) if answer.number else ""
    return [answer.job, number, status_word(answer), request.spec.name]


def status_word(answer: job_pb.SubmitJobResponse) -> str:
    """ADMITTED is "admitted": decided; "durable": it will be, once the leader is back."""
    from tidemill.v1 import job_service_pb2 as job_pb

    return job_pb.SubmitStatus.Name(answer.status).removeprefix("SUBMIT_STATUS_").lower()


def _submit_stream(ctx: typer.Context, output: Format, *, alone: bool) -> None:
    """Thousands a second: one stream, answers as they come, refusals on stderr, the sum at the end.

    Raises UsageError unless it stands `alone` in the command line.
    """
    from tidemill import jobfile
    from tidemill.v1 import job_service_pb2 as job_pb

    if not alone:
        why = "each line holds the whole job; `tidemill jobs -w` follows them"
        raise UsageError("flags do not go with jobs from stdin", why=why)
    admitted = refused = 0
    try:
        with connect(ctx) as client:
            for request, answer in _stream(client, jobfile.read_json_lines("stdin", sys.stdin)):
                if answer.status == job_pb.SUBMIT_STATUS_REFUSED:
                    refused += 1
                    why = f"{answer.reason.message} ({answer.reason.code})"
                    say(f"refused: {request.spec.name}: {why}")
                else:
                    admitted += 1
                _show_answer(request, answer, output)
    finally:
        say(f"{admitted} submitted, {refused} refused")
    if refused:
        raise typer.Exit(RefusedError.exit_code)


def _show_answer(
    request: job_pb.SubmitJobRequest, answer: job_pb.SubmitJobResponse, output: Format
) -> None:
    from tidemill.cli.output import plain, write_csv_line, write_json_line

    if output is Format.JSON:
        write_json_line(plain(answer))
    elif output is Format.CSV:
        write_csv_line(_words(request, answer))
    elif output is Format.NAME and answer.job:
        print(answer.job)


def _stream(
    client: Client, jobs: Iterator[job_pb.SubmitJobRequest]
) -> Iterator[tuple[job_pb.SubmitJobRequest, job_pb.SubmitJobResponse]]:
    """Each job asks for no more than durability: the decision would cost a round trip each."""

    def durable() -> Iterator[job_pb.SubmitJobRequest]:
        for job in jobs:
            job.durable_only = True
            yield job

    return client.submit_many(durable())
