"""Commands about the log itself: log tail, log verify, replay."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.frame import (
    EXAMPLES,
    NO,
    Command,
    Format,
    Group,
    Output,
    command,
    connect,
    detachable,
    say,
)
from tidemill.cli.look import At, parse_at
from tidemill.cli.text import visible

if TYPE_CHECKING:
    from tidemill.v1 import log_service_pb2 as log_pb

log_app = typer.Typer(
    name="log",
    cls=Group,
    help="Read and verify the log.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    EXAMPLES["log"] = ("tidemill log tail -f", "tidemill log verify")
    command(log_app, "tail", "tidemill log tail -f", "tidemill log tail --void", cls=Command)(tail)
    command(log_app, "verify", "tidemill log verify")(verify)
    app.add_typer(log_app, name="log")
    command(app, "replay", "tidemill replay --at 14:05", "tidemill replay --at 1200")(replay)


def tail(
    ctx: typer.Context,
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Entries from the end.", min=1)] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    void: Annotated[
        bool, typer.Option("--void", help="Void entries too: those that changed nothing.")
    ] = False,
    from_offset: Annotated[int, typer.Option("--from", help="From this offset on.", min=0)] = 0,
    output: Output = Format.TABLE,
) -> None:
    """Print the newest entries of the log, fact by fact."""
    from tidemill.cli.output import plain, write_json_line

    with connect(ctx) as client, detachable(ctx, "log tail -f"):
        for entry in client.entries(
            from_offset=from_offset, last=lines, follow=follow, include_void=void
        ):
            if output is Format.JSON:
                write_json_line(plain(entry))
            elif output is Format.NAME:
                print(entry.offset, flush=True)
            else:
                _show_entry(entry)


def _show_entry(answer: log_pb.ReadEntriesResponse) -> None:
    from tidemill.cli.output import moment, screen, write_line

    console = screen()
    entry = answer.entry
    head = f"{answer.offset}  {moment(entry.at_ms)}  term {entry.term}  {answer.digest.hex()[:12]}"
    if not answer.accepted:
        write_line(console, f"{head}  void: {answer.void_reason}", "red")
        return
    write_line(console, head, "bold")
    for line in answer.lines:
        by = f"  by {line.by}" if line.by else ""
        write_line(console, f"    {line.fact}  {line.text}{by}")
    sys.stdout.flush()


def verify(ctx: typer.Context, output: Output = Format.TABLE) -> None:
    """Recompute the chain from the first entry; exit code 1 when it does not hold."""
    from tidemill.cli.output import plain, write_json

    answer = None
    with connect(ctx) as client:
        for answer in client.verify_log():
            if not answer.done and output is Format.TABLE and sys.stderr.isatty():
                print(f"\r{answer.entries} entries", end="", file=sys.stderr, flush=True)
    if answer is None or not answer.done:
        say("the gateway ended before it was done; try again: tidemill log verify")
        raise typer.Exit(NO)
    if output is Format.JSON:
        write_json(plain(answer))
    else:
        problem = visible(answer.problem)
        verdict = "the log holds" if answer.ok else f"the log does NOT hold: {problem}"
        print(
            f"{verdict}\nentries   {answer.accepted} accepted, {answer.voided} void, {answer.facts} facts"
        )
        print(
            f"offset    {answer.offset}\nhead      {answer.head.hex()}\nstate     {answer.state_digest.hex()}"
        )
    if not answer.ok:
        raise typer.Exit(NO)


def replay(ctx: typer.Context, at: At = "", output: Output = Format.TABLE) -> None:
    """Fold the log anew, to a time or an offset, and show the state and its digest."""
    from tidemill.cli.output import moment, plain, write_json

    at_ms, at_offset = parse_at(at)
    with connect(ctx) as client:
        answer = client.replay(at_ms=at_ms, at_offset=at_offset)
    differs = bool(answer.live_digest) and answer.live_digest != answer.state_digest
    if output is Format.JSON:
        write_json(plain(answer))
    else:
        print(f"offset    {answer.offset}, term {answer.term}, {moment(answer.at_ms)}")
        print(f"entries   {answer.entries}, {answer.facts} facts")
        print(
            f"jobs      {_counts(dict(answer.jobs_by_state))}\nnodes     {_counts(dict(answer.nodes_by_state))}"
        )
        print(f"head      {answer.head.hex()}\nstate     {answer.state_digest.hex()}")
        if answer.live_digest:
            print(f"live      {answer.live_digest.hex()}  {'DIFFERS' if differs else 'equal'}")
    if differs:
        raise typer.Exit(NO)


def _counts(counts: dict[str, int]) -> str:
    words = ", ".join(f"{counts[state]} {state}" for state in sorted(counts))
    return visible(words) or "none"
