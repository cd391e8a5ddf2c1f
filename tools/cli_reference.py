"""Writes docs/reference/cli.md from the commands themselves: `python -m tools.cli_reference > docs/reference/cli.md`.

A test holds the page to this. It must never say anything that the commands do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from tidemill.cli.app import app
from tidemill.cli.frame import EXAMPLES, EXIT_CODES

HEAD = """\
# The command `tidemill`

Generated from the commands by `python -m tools.cli_reference`; edit those instead.

Answers go to stdout, words to people to stderr. `-o table` (the default) fits the terminal, and cuts nothing in a pipe;
`-o wide` has every column; `-o json`, `-o csv` and `-o name` are for programs and stay as they are: a listing is a JSON
array, one thing an object, what follows (`-w`, `-f`) one object a line. Numbers are numbers, times milliseconds since
the epoch. `NO_COLOR` is honoured; nothing moves outside a terminal. Ids may be cut short as long as they are unique, and
every job has a number too. Ctrl-C detaches; jobs go on.

Which cell: `--gateway` (`HOST:PORT`, or several with commas between: one that answers is used), else `TIDEMILL_GATEWAY` with `TIDEMILL_TOKEN` and `TIDEMILL_CA`, else a context of
`~/.config/tidemill/config.toml` (`--context`, `TIDEMILL_CONTEXT`, or its `current`), else the embedded cell of this
machine (`--cell`, `TIDEMILL_CELL`, or the only one). A token is only sent to the gateway it was found with.

```toml
current = "lab"
[contexts.lab]
gateway = "tls://gateway.lab:7443"
token_file = "~/.config/tidemill/lab.token"
ca = "~/.config/tidemill/lab-ca.pem"
```

## Exit codes

| code | means |
|---|---|
"""


def page() -> str:
    """The whole page."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    group = typer.main.get_command(app)
    return HEAD + codes + "\n" + "\n".join(_sections(group, "tidemill"))


def _sections(command: Any, path: str) -> Iterator[str]:
    """One section a command, in the order of help."""
    for name, below in command.commands.items():
        full = f"{path} {name}"
        if hasattr(below, "commands"):
            yield from _sections(below, full)
        else:
            yield _section(below, name, full)


def _section(command: Any, name: str, full: str) -> str:
    lines = [f"## `{full}`\n", command.help.strip() + "\n", "```bash"]
    lines += [*EXAMPLES[name], "```\n", "| flag or argument | meaning |", "|---|---|"]
    for parameter in command.params:
        if parameter.name != "help":
            lines.append(f"| {_spelling(parameter)} | {_meaning(parameter)} |")
    return "\n".join(lines) + "\n"


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.rstrip('_').upper()}`{' ...' if parameter.nargs == -1 else ''}"
    return ", ".join(f"`{spelling}`" for spelling in parameter.opts)


def _meaning(parameter: Any) -> str:
    text = parameter.help or ""
    default = parameter.default
    shown = getattr(default, "value", default)
    if shown and shown is not True and parameter.param_type_name == "option":
        text += f" Default: `{shown}`."
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
