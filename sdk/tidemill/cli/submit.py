"""`tidemill submit`: a command, a script, a job file, or a stream of jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.frame import (
    Format,
    Output,
    SubmitCommand,
    command,
    complete_queue,
    connect,
    say,
)
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
    ctx: typer.Context,
    file: Annotated[
        str,
        typer.Argument(help="A job file (.yaml, .toml), a script, or - for JSON lines on stdin."),
    ] = "",
    *,
    name: Annotated[
        str, typer.Option(help="Shown in lists; the program's name if not given.")
    ] = "",
    queue: Annotated[
        str, typer.Option(help="Whose quota it uses.", autocompletion=complete_queue)
    ] = "",
    priority: Annotated[str, typer.Option(help="Higher goes first.", metavar="N")] = "",
    nodes: Annotated[
        str, typer.Option(help="Members that start together, one a node.", metavar="N")
    ] = "",
    gpus: Annotated[str, typer.Option(help="Devices for each member.", metavar="N")] = "",
    gpu_model: Annotated[
        list[str] | None, typer.Option(help="Accept this model; may be repeated.")
    ] = None,
    cpu: Annotated[
        str, typer.Option(help="Processors for each member: 4, 0.5, 500m.", metavar="N")
    ] = "",
    memory: Annotated[
        str, typer.Option(help="Memory for each member: 64GiB.", metavar="SIZE")
    ] = "",
    processes: Annotated[str, typer.Option(help="Processes a member starts.", metavar="N")] = "",
    array: Annotated[str, typer.Option(help="Submit N alike as one request.", metavar="N")] = "",
    env: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, or NAME to pass it on.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, for finding it again.")
    ] = None,
    workdir: Annotated[
        str, typer.Option(help="Where it runs; the current directory if not given.")
    ] = "",
    time_limit: Annotated[str, typer.Option(help="Of one attempt: 2h.", metavar="TIME")] = "",
    hang_after: Annotated[
        str, typer.Option(help="No step for so long means hung: 10m.", metavar="TIME")
    ] = "",
    grace: Annotated[
        str, typer.Option(help="Between stop signal and kill: 30s.", metavar="TIME")
    ] = "",
    max_attempts: Annotated[
        str, typer.Option(help="Attempts that may fail; -1: no bound.", metavar="N")
    ] = "",
    checkpoints: Annotated[
        str, typer.Option(help="Root directory of checkpoints.", metavar="DIR")
    ] = "",
    overlap_safe: Annotated[
        bool, typer.Option("--overlap-safe", help="Saves through the SDK only: restart at once.")
    ] = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Do not start before `tidemill release`.")
    ] = False,
    id_: Annotated[
        str, typer.Option("--id", help="Your key: the same again is the same job.", metavar="KEY")
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Submit a job: flags and a command after --, a script, or a job file that flags override."""
    flags = {
        "name": name, "queue": queue, "priority": priority, "nodes": nodes, "gpus": gpus, "gpu_models": gpu_model,
        "cpu": cpu, "memory": memory, "processes": processes, "array": array, "workdir": workdir,
        "time_limit": time_limit, "hang_after": hang_after, "grace": grace, "overlap_safe": overlap_safe,
        "hold": hold, "id": id_, "env": _pairs("--env", env), "labels": _pairs("--label", label),
        "retry": {"max_attempts": max_attempts} if max_attempts else None,
        "checkpoints": {"root": checkpoints} if checkpoints else None,
    }  # fmt: skip
    given = {key: value for key, value in flags.items() if value}
    words: list[str] = ctx.meta.get("tidemill.command", [])
    if file == "-":
        if given or words:
            raise UsageError(
                "flags do not go with jobs from stdin", why="each line holds the whole job"
            )
        _submit_stream(ctx, output)
        return
    requests = list(_requests(file, words, given))
    if dry_run:
        from tidemill.cli.output import plain, write_json

        shown = [plain(request) for request in requests]
        write_json(shown[0] if len(shown) == 1 else shown)
        return
    with connect(ctx) as client:
        answers = [(request, client.submit(request)) for request in requests]
        _show_answers(answers, output)
        if watch:
            from tidemill.cli.follow import follow_to_end

            follow_to_end(client, [answer.job for _, answer in answers], output)
        elif output in {Format.TABLE, Format.WIDE}:
            say(f"next: tidemill why {answers[-1][1].job}")


def _requests(
    file: str, words: list[str], flags: Mapping[str, Any]
) -> Iterator[job_pb.SubmitJobRequest]:
    """The submissions that the command line means."""
    from tidemill import jobfile
    from tidemill.source import Document, read_documents

    here = {"workdir": str(Path.cwd())}
    if file and Path(file).suffix.lower() in JOB_FILES:
        command_given = {"command": words} if words else {}
        for document in read_documents(Path(file)):
            merged = {**here, **document.value, **_merged(document.value, flags), **command_given}
            yield jobfile.from_document(Document(document.name, merged, document.lines))
        return
    job: dict[str, Any] = {**here, **flags}
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


def _merged(document: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags win; those that are mappings add to the file's instead of replacing them."""
    merged = dict(flags)
    for key in ("env", "labels", "retry", "checkpoints"):
        if key in flags and isinstance(document.get(key), Mapping):
            merged[key] = {**document[key], **flags[key]}
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
    from tidemill.cli.output import plain, write_json

    if output is Format.NAME:
        print("\n".join(answer.job for _, answer in answers))
    elif output is Format.JSON:
        shown = [plain(answer) for _, answer in answers]
        write_json(shown[0] if len(shown) == 1 else shown)
    else:
        separator = "," if output is Format.CSV else "  "
        for request, answer in answers:
            number = str(answer.number) if answer.number else ""
            words = [answer.job, number, status_word(answer), request.spec.name]
            print(separator.join(word for word in words if word or output is Format.CSV))


def status_word(answer: job_pb.SubmitJobResponse) -> str:
    """ADMITTED is "admitted": decided; "durable": it will be, once the leader is back."""
    from tidemill.v1 import job_service_pb2 as job_pb

    return job_pb.SubmitStatus.Name(answer.status).removeprefix("SUBMIT_STATUS_").lower()


def _submit_stream(ctx: typer.Context, output: Format) -> None:
    """Thousands a second: one stream, answers as they come, refusals on stderr, the sum at the end."""
    from tidemill import jobfile
    from tidemill.cli.output import plain, write_json_line
    from tidemill.v1 import job_service_pb2 as job_pb

    admitted = refused = 0
    with connect(ctx) as client:
        for request, answer in _stream(client, jobfile.read_json_lines("stdin", sys.stdin)):
            if answer.status == job_pb.SUBMIT_STATUS_REFUSED:
                refused += 1
                say(f"refused: {request.spec.name}: {answer.reason.message} ({answer.reason.code})")
            else:
                admitted += 1
            if output is Format.JSON:
                write_json_line(plain(answer))
            elif output is Format.CSV:
                print(f"{answer.job},{answer.number},{status_word(answer)},{request.spec.name}")
            elif output is Format.NAME and answer.job:
                print(answer.job)
    say(f"{admitted} submitted, {refused} refused")
    if refused:
        raise typer.Exit(RefusedError.exit_code)


def _stream(
    client: Client, jobs: Iterator[job_pb.SubmitJobRequest]
) -> Iterator[tuple[job_pb.SubmitJobRequest, job_pb.SubmitJobResponse]]:
    """Each job asks for no more than durability: the decision would cost a round trip each."""

    def durable() -> Iterator[job_pb.SubmitJobRequest]:
        for job in jobs:
            job.durable_only = True
            yield job

    return client.submit_many(durable())
