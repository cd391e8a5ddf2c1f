"""Commands that change jobs: cancel, hold, release, requeue. Many ids a call; one request each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.frame import Format, Message, Output, command, connect, each
from tidemill.cli.look import Job

if TYPE_CHECKING:
    from tidemill.client import Client
    from tidemill.v1 import views_pb2


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(
        app,
        "cancel",
        "tidemill cancel 42 -m 'wrong data'",
        "tidemill jobs --name probe -o name | tidemill cancel -",
    )(cancel)
    command(app, "hold", "tidemill hold 42")(hold)
    command(app, "release", "tidemill release 42")(release)
    command(app, "requeue", "tidemill requeue 42 --save-first")(requeue)  # fmt: skip


def cancel(
    ctx: typer.Context, job: Job, message: Message = "", output: Output = Format.TABLE
) -> None:
    """Stop jobs for good."""
    _change(ctx, job, lambda client, item: client.cancel(item, message=message), output)


def hold(
    ctx: typer.Context, job: Job, message: Message = "", output: Output = Format.TABLE
) -> None:
    """Keep jobs from being placed; running ones are stopped."""
    _change(ctx, job, lambda client, item: client.hold(item, message=message), output)


def release(ctx: typer.Context, job: Job, output: Output = Format.TABLE) -> None:
    """Let held jobs be placed again."""
    _change(ctx, job, lambda client, item: client.release(item), output)


def requeue(
    ctx: typer.Context,
    job: Job,
    *,
    save_first: Annotated[
        bool, typer.Option("--save-first", help="Ask for a checkpoint before.")
    ] = False,
    message: Message = "",
    output: Output = Format.TABLE,
) -> None:
    """Stop the attempt and queue the jobs again; ended ones run again."""
    _change(
        ctx,
        job,
        lambda client, item: client.requeue(item, message=message, save_first=save_first),
        output,
    )


def _change(
    ctx: typer.Context,
    job: list[str],
    change: Callable[[Client, str], views_pb2.JobView],
    output: Format,
) -> None:
    from tidemill.cli import views
    from tidemill.cli.output import write_list

    changed: list[views_pb2.JobView] = []
    with connect(ctx) as client:
        try:
            each(job, lambda item: changed.append(change(client, item)))
        finally:
            if changed:
                write_list(changed, views.JOBS, output)
