"""The flags of `tidemill submit` that describe a job: how each is spelled, and what help says of it.

Values stay text here: jobfile.py reads them as it reads a file's, so both are judged alike.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from tidemill.cli.frame import complete_queue

File: TypeAlias = Annotated[
    str,
    typer.Argument(help="A job file (.yaml, .toml), a script, or - for JSON lines on stdin."),
]
Name: TypeAlias = Annotated[
    str, typer.Option(help="Shown in lists; the program's name if not given.")
]
Queue: TypeAlias = Annotated[
    str, typer.Option(help="Whose quota it uses.", autocompletion=complete_queue)
]
Priority: TypeAlias = Annotated[str, typer.Option(help="Higher goes first.", metavar="N")]
Nodes: TypeAlias = Annotated[
    str, typer.Option(help="Members that start together, one a node.", metavar="N")
]
Gpus: TypeAlias = Annotated[str, typer.Option(help="Devices for each member.", metavar="N")]
GpuModel: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="Accept this model; may be repeated.")
]
Cpu: TypeAlias = Annotated[
    str, typer.Option(help="Processors for each member: 4, 0.5, 500m.", metavar="N")
]
Memory: TypeAlias = Annotated[
    str, typer.Option(help="Memory for each member: 64GiB.", metavar="SIZE")
]
Processes: TypeAlias = Annotated[str, typer.Option(help="Processes a member starts.", metavar="N")]
Array: TypeAlias = Annotated[str, typer.Option(help="Submit N alike as one request.", metavar="N")]
Env: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE, or NAME to pass it on.")
]
Label: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE, for finding it again.")
]
Workdir: TypeAlias = Annotated[
    str, typer.Option(help="Where it runs; the current directory if not given.")
]
TimeLimit: TypeAlias = Annotated[str, typer.Option(help="Of one attempt: 2h.", metavar="TIME")]
HangAfter: TypeAlias = Annotated[
    str, typer.Option(help="No step for so long means hung: 10m.", metavar="TIME")
]
Grace: TypeAlias = Annotated[
    str, typer.Option(help="Between stop signal and kill: 30s.", metavar="TIME")
]
MaxAttempts: TypeAlias = Annotated[
    str, typer.Option(help="Attempts that may fail; -1: no bound.", metavar="N")
]
Checkpoints: TypeAlias = Annotated[
    str, typer.Option(help="Root directory of checkpoints.", metavar="DIR")
]
OverlapSafe: TypeAlias = Annotated[
    bool, typer.Option("--overlap-safe", help="Saves through the SDK only: restart at once.")
]
Hold: TypeAlias = Annotated[
    bool, typer.Option("--hold", help="Do not start before `tidemill release`.")
]
Key: TypeAlias = Annotated[
    str, typer.Option("--id", help="Your key: the same again is the same job.", metavar="KEY")
]
Watch: TypeAlias = Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")
]
