"""Commands about nodes and queues: nodes, cordon, uncordon, drain, confirm-dead, queues, apply; and doctor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.frame import (
    NO,
    Format,
    Message,
    Output,
    command,
    complete_node,
    connect,
    each,
    say,
)
from tidemill.errors import TidemillError, UsageError

if TYPE_CHECKING:
    from tidemill.client import Client
    from tidemill.v1 import views_pb2

Node = Annotated[
    list[str], typer.Argument(help="Names; - reads them from stdin.", autocompletion=complete_node)
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "nodes", "tidemill nodes", "tidemill nodes --state lost -o name")(nodes)
    command(app, "cordon", "tidemill cordon n7 -m 'new switch'")(cordon)
    command(app, "uncordon", "tidemill uncordon n7")(uncordon)
    command(app, "drain", "tidemill drain n7 --within 30m -m 'firmware'")(drain)
    command(app, "confirm-dead", "tidemill confirm-dead n7 --yes -m 'power is off'")(confirm_dead)
    command(app, "queues", "tidemill queues")(queues)
    command(app, "apply", "tidemill apply queues.yaml")(apply)
    command(app, "doctor", "tidemill doctor")(doctor)


def nodes(
    ctx: typer.Context,
    *,
    state: Annotated[
        list[str] | None, typer.Option(help="ready, suspect, lost; may be repeated.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """List nodes: state, what is free, what is wrong."""
    from tidemill.cli import views
    from tidemill.cli.output import write_list

    with connect(ctx) as client:
        write_list(client.nodes(state or ()), views.NODES, output)


def cordon(
    ctx: typer.Context, node: Node, message: Message = "", output: Output = Format.TABLE
) -> None:
    """No new runs on these nodes; what runs goes on."""
    _change(ctx, node, lambda client, item: client.cordon(item, message=message), output)


def uncordon(ctx: typer.Context, node: Node, output: Output = Format.TABLE) -> None:
    """Put nodes back in service."""
    _change(ctx, node, lambda client, item: client.uncordon(item), output)


def drain(
    ctx: typer.Context,
    node: Node,
    *,
    within: Annotated[
        str, typer.Option(help="Empty by then at the latest: 30m.", metavar="TIME")
    ] = "",
    message: Message = "",
    output: Output = Format.TABLE,
) -> None:
    """Empty nodes: jobs are asked to save, then placed elsewhere."""
    within_ms = _duration(within) if within else 0
    _change(
        ctx,
        node,
        lambda client, item: client.drain(item, within_ms=within_ms, message=message),
        output,
    )


def confirm_dead(
    ctx: typer.Context,
    node: Node,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="You have made sure.")] = False,
    message: Message = "",
    output: Output = Format.TABLE,
) -> None:
    """Vouch that lost nodes run nothing any more, so that their jobs may start elsewhere."""
    if not yes:
        raise UsageError(
            "say --yes when you have made sure",
            why="if a node still runs its jobs, two attempts would run at once and may spoil each other's files",
            next_command="tidemill nodes --state lost",
        )
    _change(ctx, node, lambda client, item: client.confirm_dead(item, message=message), output)


def queues(ctx: typer.Context, output: Output = Format.TABLE) -> None:
    """List queues: who holds how much, who waits."""
    from tidemill.cli import views
    from tidemill.cli.output import write_list

    with connect(ctx) as client:
        write_list(client.queues(), views.QUEUES, output)


def apply(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="A list under `queues`, or one queue a YAML document.")
    ],
    output: Output = Format.TABLE,
) -> None:
    """Make or change queues as a file says."""
    from tidemill.cli import views
    from tidemill.cli.output import write_list
    from tidemill.jobfile import read_queues

    applied: list[views_pb2.QueueView] = []
    wanted = read_queues(file)
    with connect(ctx) as client:
        try:
            for queue in wanted:
                applied.append(client.apply_queue(queue))  # noqa: PERF401  # those applied before a failure are shown
        finally:
            if applied:
                write_list(applied, views.QUEUES, output)


def doctor(ctx: typer.Context, output: Output = Format.TABLE) -> None:
    """Check the way to the cell and the cell itself; each problem comes with the next command."""
    from tidemill.cli.checks import check, check_cell
    from tidemill.cli.output import screen, write_json, write_line

    findings = []
    try:
        with connect(ctx) as client:
            findings = check_cell(client)
    except TidemillError as error:
        findings = [
            check(
                "cell", "failed", f"{error.what}: {error.why}", error.next_command or "tidemilld up"
            )
        ]
    if output is Format.JSON:
        write_json([finding._asdict() for finding in findings])
    else:
        console = screen()
        for finding in findings:
            style = {"ok": "green", "warning": "yellow", "failed": "red"}[finding.verdict]
            write_line(console, f"{finding.verdict:<8} {finding.subject:<10} {finding.text}", style)
            if finding.next_command:
                write_line(console, f"         next: {finding.next_command}")
    if any(finding.verdict == "failed" for finding in findings):
        raise typer.Exit(NO)


def _change(
    ctx: typer.Context,
    node: list[str],
    change: Callable[[Client, str], views_pb2.NodeView],
    output: Format,
) -> None:
    from tidemill.cli import views
    from tidemill.cli.output import write_list

    changed: list[views_pb2.NodeView] = []
    with connect(ctx) as client:
        try:
            each(node, lambda item: changed.append(change(client, item)))
        finally:
            if changed:
                write_list(changed, views.NODES, output)
                if output in {Format.TABLE, Format.WIDE}:
                    say(f"next: tidemill history {changed[-1].node}")


def _duration(text: str) -> int:
    from tidemill import units

    try:
        return units.duration_ms(text)
    except ValueError as error:
        raise UsageError(f"--within {text}", why=str(error)) from error
