"""The frame of every command: help that starts with an example, errors that say what next, exit codes, the connection.

It must never know what a command does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from tidemill.cli.text import visible
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.client import Client

EXIT_CODES: Final = {
    0: "Done.",
    1: "The answer is no: the watched job did not succeed, or a check found a problem.",
    2: "Wrong usage: unknown flags, a job file with faults, no cell to talk to. Nothing was sent.",
    3: "The cell refused; the reason is on stderr.",
    4: "No such job, node or queue, or the prefix fits several.",
    5: "The token is missing, wrong, or lacks the right.",
    6: "The gateway cannot be reached or did not answer in time; trying again is safe.",
    70: "A defect in Tidemill.",
    130: "Interrupted by Ctrl-C; jobs go on.",
}
NO: Final = 1
EXAMPLES: Final[dict[str, tuple[str, ...]]] = {}


class Format(StrEnum):
    """How answers are written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    CSV = "csv"
    NAME = "name"


Output: TypeAlias = Annotated[
    Format,
    typer.Option("--output", "-o", help="For people: table, wide. For programs: json, csv, name."),
]
Message: TypeAlias = Annotated[str, typer.Option("--message", "-m", help="Why; it is recorded.")]


@dataclass(frozen=True, slots=True)
class Connection:
    """Where to connect, as the global flags say."""

    gateway: str
    token: str
    context: str
    cell: str

    @property
    def program(self) -> str:
        """How to call `tidemill` again for the same cell; a token is never repeated."""
        flags = (("gateway", self.gateway), ("context", self.context), ("cell", self.cell))
        return " ".join(["tidemill", *(f"--{name} {value}" for name, value in flags if value)])

    def open(self) -> Client:
        """A client. Raises UsageError when there is no cell to talk to."""
        from tidemill.client import Client

        return Client(self.gateway, token=self.token, context=self.context, cell=self.cell)


def connection(ctx: typer.Context) -> Connection:
    """What the global flags say."""
    found = ctx.find_object(Connection)
    assert found is not None, "the root callback sets it"
    return found


def connect(ctx: typer.Context) -> Client:
    """The client for this command; close it, or use it as a context manager."""
    return connection(ctx).open()


@contextmanager
def detachable(ctx: typer.Context, command_: str) -> Iterator[None]:
    """Ctrl-C leaves and says how to come back; it ends nothing but this command."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(err=True)  # Leaves the line with the ^C.
        say(f"detached; jobs go on. Come back with: {connection(ctx).program} {command_}")
        raise


class Command(TyperCommand):
    """Shows its examples first, and turns errors into a message and an exit code."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        examples = EXAMPLES.get(self.name or "", ())
        for number, example in enumerate(examples):
            formatter.write(f"{'Example:' if number == 0 else '        '} {example}\n")
        if examples:
            formatter.write("\n")
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TidemillError as error:
            show_error(error)
            raise typer.Exit(error.exit_code) from error


class SubmitCommand(Command):
    """Everything after "--" is the job's command; click itself would lose where it began."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta["tidemill.command"] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """Commands in the order in which they were written, not by the alphabet."""

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for number, example in enumerate(EXAMPLES.get(self.name or "", ())):
            formatter.write(f"{'Example:' if number == 0 else '        '} {example}\n")
        formatter.write("\n")
        super().format_help(ctx, formatter)


def command(
    app: typer.Typer, name: str, *examples: str, cls: type[Command] = Command
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command with the examples that open its help."""
    EXAMPLES[name] = examples
    return app.command(name, cls=cls)


def show_error(error: TidemillError) -> None:
    """What, why, next: on stderr, plain enough to paste."""
    lines = [f"error: {visible(error.what)}"]
    why = [visible(line) for line in error.why.splitlines()]
    lines += [f"  why:  {line}" if i == 0 else f"        {line}" for i, line in enumerate(why)]
    if error.next_command:
        lines.append(f"  next: {visible(error.next_command)}")
    typer.echo("\n".join(lines), err=True)


def say(message: str) -> None:
    """A line to the person at the terminal, apart from the answer: on stderr."""
    typer.echo(visible(message), err=True)


def ids(given: Iterable[str]) -> Iterator[str]:
    """The ids given; "-" stands for those on stdin, one or more a line."""
    for item in given:
        if item == "-":
            for line in sys.stdin:
                yield from line.split()
        else:
            yield item


def each(given: Iterable[str], act: Callable[[str], None]) -> None:
    """Do it for every id; what fails is shown, the others go on, the first failure's code is the exit code."""
    failed = 0
    for item in ids(given):
        try:
            act(item)
        except TidemillError as error:
            show_error(error)
            failed = failed or error.exit_code
    if failed:
        raise typer.Exit(failed)


# ---------------------------------------------------------------- completion


def complete_job(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Jobs whose id begins so."""
    return _complete(
        ctx, lambda client: [(job.job, job.spec.name) for job in client.jobs(limit=500)], incomplete
    )


def complete_node(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Nodes whose name begins so."""
    return _complete(
        ctx, lambda client: [(node.node, node.state) for node in client.nodes()], incomplete
    )


def complete_queue(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Queues whose name begins so."""
    return _complete(
        ctx, lambda client: [(queue.queue, "") for queue in client.queues()], incomplete
    )


def _complete(
    ctx: typer.Context, candidates: Callable[[Client], list[tuple[str, str]]], incomplete: str
) -> list[tuple[str, str]]:
    """A key press waits at most a second, and shows no error."""
    from tidemill.client import Client

    connection = ctx.find_object(Connection) or Connection("", "", "", "")
    try:
        client = Client(connection.gateway, token=connection.token, context=connection.context,
                        cell=connection.cell, deadline_s=1.0)  # fmt: skip
        with client:
            return [
                (visible(word), visible(about))
                for word, about in candidates(client)
                if word.startswith(incomplete)
            ]
    except TidemillError:
        return []
