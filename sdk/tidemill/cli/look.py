"""Commands that look at jobs: jobs, show, why, history, logs. They change nothing."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.frame import (
    Format,
    Output,
    command,
    complete_job,
    connect,
    detachable,
    each,
    ids,
    say,
)
from tidemill.errors import UsageError

if TYPE_CHECKING:
    from tidemill.v1 import job_service_pb2 as job_pb
    from tidemill.v1 import views_pb2

Job = Annotated[
    list[str],
    typer.Argument(
        help="Ids, unique prefixes or numbers; - reads them from stdin.",
        autocompletion=complete_job,
    ),
]
At = Annotated[
    str, typer.Option("--at", help="An earlier time (14:05, -10m, ISO) or an offset of the log.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "jobs", "tidemill jobs -w", "tidemill jobs --state failed --all -o json")(jobs)
    command(app, "show", "tidemill show 42")(show)
    command(app, "why", "tidemill why 42", "tidemill why 42 --at 14:05")(why)
    command(app, "history", "tidemill history 42")(history)
    command(app, "logs", "tidemill logs -f 42", "tidemill logs 42 --rank 3 --attempt 1")(logs)


def jobs(
    ctx: typer.Context,
    job: Annotated[list[str] | None, typer.Argument(help="Only these; - reads ids from stdin.", autocompletion=complete_job)] = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow changes.")] = False,
    every: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    state: Annotated[list[str] | None, typer.Option(help="In this state; may be repeated.")] = None,
    queue: Annotated[str, typer.Option(help="Of this queue.")] = "",
    by: Annotated[str, typer.Option(help="Submitted by this principal.")] = "",
    name: Annotated[str, typer.Option(help="Whose name contains this.")] = "",
    limit: Annotated[int, typer.Option(help="At most so many; 0: all.", min=0)] = 0,
    output: Output = Format.TABLE,
) -> None:  # fmt: skip
    """List jobs: live ones, or those named; ended ones are shown when named."""
    from tidemill.cli import views
    from tidemill.cli.output import write_list
    from tidemill.v1 import job_service_pb2 as job_pb

    unknown = sorted(set(state or ()) - set(views.STATES))
    if unknown:
        raise UsageError(f"no job state {unknown[0]!r}", why=f"states: {', '.join(views.STATES)}")
    chosen = job_pb.JobFilter(
        jobs=list(ids(job or ())),
        all=every,
        states=state or (),
        queue=queue,
        by=by,
        name_contains=name,
    )
    with connect(ctx) as client:
        if watch:
            from tidemill.cli.follow import follow_list

            with detachable(ctx, " ".join(["jobs -w", *chosen.jobs])):
                follow_list(client, chosen, output)
            return
        write_list(client.jobs(chosen, limit=limit), views.JOBS, output)


def show(ctx: typer.Context, job: Job, output: Output = Format.TABLE) -> None:
    """Show jobs in full: attempts, runs, checkpoints."""
    from tidemill.cli import views
    from tidemill.cli.output import plain, write_json, write_list

    with connect(ctx) as client:
        found: list[views_pb2.JobView] = []
        try:
            each(job, lambda item: found.append(client.job(item)))
        finally:
            if output is Format.JSON and found:
                shown = [plain(view) for view in found]
                write_json(shown[0] if len(shown) == 1 else shown)
            elif output in {Format.NAME, Format.CSV} and found:
                write_list(found, views.JOBS, output)
            else:
                for number, view in enumerate(found):
                    if number:
                        print()
                    _show_job(view, output)


def _show_job(view: views_pb2.JobView, output: Format) -> None:
    from tidemill.cli import views
    from tidemill.cli.output import screen, style_of, write_line, write_list

    console = screen()
    for label, text in views.job_lines(view):
        write_line(console, f"{label:<10} {text}", style_of(view.state) if label == "state" else "")
    if view.attempts:
        console.print("\nattempts", style="bold")
        write_list(view.attempts, views.ATTEMPTS, output)
        console.print(f"\nruns of attempt {view.attempts[-1].attempt}", style="bold")
        write_list(view.attempts[-1].runs, views.RUNS, output)
    if view.checkpoints:
        console.print("\ncheckpoints", style="bold")
        write_list(view.checkpoints, views.CHECKPOINTS, output)


def why(
    ctx: typer.Context,
    job: Job,
    *,
    at: At = "",
    last: Annotated[
        int, typer.Option("--last", "-n", help="Lines of history shown; 0: all.", min=0)
    ] = 8,
    output: Output = Format.TABLE,
) -> None:
    """Say why jobs are in their state: what is missing, whom they wait for, how they got there."""
    from tidemill.cli.output import plain, write_json_line

    at_ms, at_offset = parse_at(at)
    with connect(ctx) as client:

        def explain(item: str) -> None:
            answer = client.explain(item, at_ms=at_ms, at_offset=at_offset)
            if output is Format.JSON:
                write_json_line(plain(answer))
            else:
                _show_why(answer, last, output)

        each(job, explain)


def _show_why(answer: job_pb.ExplainJobResponse, last: int, output: Format) -> None:
    from tidemill.cli import views
    from tidemill.cli.output import screen, style_of, write_line, write_list

    view, reason = answer.job, answer.reason
    console = screen()
    head = f"{view.job}  {view.spec.name} is {view.state}"
    write_line(console, head, style_of(view.state))
    if reason.code:
        write_line(console, f"  why:  {views.reason_text(reason)}")
    if reason.blockers:
        shown = ", ".join(reason.blockers[:8]) + (", ..." if len(reason.blockers) > 8 else "")
        write_line(console, f"  waits for: {shown}")
    if reason.missing:
        write_line(console, f"  missing: {reason.missing}")
    if answer.history:
        console.print()
        write_list(answer.history[-last:] if last else answer.history, views.HISTORY, output)
    hint = _next_of(view)
    if hint:
        say(f"next: {hint}")


def _next_of(view: views_pb2.JobView) -> str:
    """What a person would most likely do."""
    match view.state:
        case "held":
            return f"tidemill release {view.job}"
        case "queued":
            return "tidemill nodes"
        case "failed" | "running":
            return f"tidemill logs {view.job}"
        case _:
            return ""


def history(
    ctx: typer.Context,
    id_: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A job by id, unique prefix or number; a node or queue by name.",
            autocompletion=complete_job,
        ),
    ],
    *,
    since: Annotated[str, typer.Option(help="From this time on.", metavar="TIME")] = "",
    until: Annotated[str, typer.Option(help="Up to this time.", metavar="TIME")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Tell what happened to a job, node or queue, fact by fact."""
    from tidemill.cli import views
    from tidemill.cli.output import write_list

    with connect(ctx) as client:
        lines = client.history(id_, from_ms=_time(since, "--since"), to_ms=_time(until, "--until"))
    write_list(lines, views.HISTORY, output)


def logs(
    ctx: typer.Context,
    job: Annotated[
        str, typer.Argument(help="Id, unique prefix or number.", autocompletion=complete_job)
    ],
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it writes.")] = False,
    rank: Annotated[int, typer.Option(help="Of this member.", min=0)] = 0,
    attempt: Annotated[int, typer.Option(help="Of this attempt; 0: the newest.", min=0)] = 0,
    tail: Annotated[int, typer.Option(help="Only the last bytes; 0: all that is kept.", min=0)] = 0,
) -> None:
    """Print what a job writes."""
    with connect(ctx) as client, detachable(ctx, f"logs -f {job}"):
        for chunk in client.logs(job, rank=rank, attempt=attempt, follow=follow, tail_bytes=tail):
            sys.stdout.buffer.write(chunk.data)
            sys.stdout.buffer.flush()


def parse_at(text: str) -> tuple[int, int]:
    """(time in ms, offset) from "--at": a whole number is an offset. Raises UsageError."""
    if text.isdecimal():
        return 0, int(text)
    return _time(text, "--at"), 0


def _time(text: str, flag: str) -> int:
    from tidemill import units

    if not text:
        return 0
    try:
        return units.moment_ms(text, now=datetime.now().astimezone())
    except ValueError as error:
        raise UsageError(f"{flag} {text}", why=str(error)) from error
