"""The commands of `tidemill`, in the order in which help shows them, and the flags that all share."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import changes, fleet, look, record, submit
from tidemill.cli.frame import EXAMPLES, Connection, Group, say

app = typer.Typer(
    name="tidemill",
    cls=Group,
    help="Submit, watch and explain jobs of a Tidemill cell.",
    epilog="Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 refused, 4 not found, "
    "5 not allowed, 6 unreachable (docs/reference/cli.md).",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
EXAMPLES["tidemill"] = ("tidemill submit --gpus 8 --nodes 2 --watch -- python train.py",)


def _version(asked: bool) -> None:  # noqa: FBT001  # the callback's shape is the library's
    if asked:
        from importlib.metadata import version

        print(f"tidemill {version('tidemill')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    *,
    gateway: Annotated[
        str, typer.Option(help="HOST:PORT, or tls://HOST:PORT.", metavar="ADDRESS")
    ] = "",
    token: Annotated[
        str, typer.Option(help="Better in TIDEMILL_TOKEN or a context: others see flags.")
    ] = "",
    context: Annotated[str, typer.Option(help="A context of ~/.config/tidemill/config.toml.")] = "",
    cell: Annotated[str, typer.Option(help="An embedded cell, by name or directory.")] = "",
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Take the flags that say which cell is meant."""
    del version
    if token:
        say(
            "note: a token in the command line is visible to others on this machine; prefer TIDEMILL_TOKEN"
        )
    ctx.obj = Connection(gateway, token, context, cell)


submit.register(app)
look.register(app)
changes.register(app)
fleet.register(app)
record.register(app)
