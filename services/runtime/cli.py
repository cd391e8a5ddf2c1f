"""`tidemilld NAME`: finds a command through package entry points and runs it, so that it imports nobody.

A command is `main(argv) -> int`, registered in the group `tidemilld.commands`; its summary is the first line of its
module's docstring, read without importing it. Errors that end a process become exit codes here, in one place. It
must import nothing heavy: a supervisor starts it for every service.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "tidemilld.commands"
DISTRIBUTION: Final = "tidemill-server"
_USAGE: Final = 2
_HELP: Final = ("-h", "--help", "help")
_VERSION: Final = ("-V", "--version", "version")

Main = Callable[[Sequence[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tidemilld`; answers the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if not name or name in _HELP:
        print(_help(commands))
        return 0 if name else _USAGE
    if name in _VERSION:
        return _version(rest)
    if name not in commands:
        print(f"tidemilld: no command {name!r}{_suggestion(name, commands)}", file=sys.stderr)
        return _USAGE
    return run(commands[name].load(), rest)


def run(command: Main, argv: Sequence[str]) -> int:
    """Run a command; an error that ends it is said on stderr and becomes its exit code."""
    try:
        return command(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # The reader of our output has gone; there is nobody to tell.
        return 141
    except Exception as error:  # noqa: BLE001 - said and given a code; a bug with its traceback
        return _ended(error)


def _ended(error: Exception) -> int:
    from services.runtime.exits import ExitCode, exit_code_of

    code = exit_code_of(error)
    if code is ExitCode.FAILED:
        import traceback

        traceback.print_exception(error)
    print(f"tidemilld: {str(error) or type(error).__name__}", file=sys.stderr)
    return code


def _help(commands: dict[str, EntryPoint]) -> str:
    width = max((len(name) for name in commands), default=0)
    lines = [f"  {name:<{width}}  {_summary(point)}" for name, point in sorted(commands.items())]
    return "\n".join(
        [
            "usage: tidemilld COMMAND [FLAGS]",
            "",
            "The services of a Tidemill cell. `tidemilld up` runs a whole cell on this machine.",
            "",
            "commands:",
            *(lines or ["  none is installed"]),
            "",
            "  tidemilld COMMAND --help      every flag of a command, with its environment variable and default",
            "  tidemilld --version [-o json]",
        ]
    )


def _summary(point: EntryPoint) -> str:
    """First line of the docstring of the command's module, which is not run for it."""
    import ast
    import importlib.util
    from pathlib import Path

    try:
        spec = importlib.util.find_spec(point.module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        return "(not installed)"
    doc = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    _, told, summary = doc.partition("\n")[0].partition("`: ")
    return summary if told else doc.partition("\n")[0]


def _version(rest: Sequence[str]) -> int:
    number = importlib.metadata.version(DISTRIBUTION)
    match rest:
        case []:
            print(f"tidemilld {number}")
        case ["-o" | "--output", "json"]:
            import json
            import platform

            versions = {"version": number, "python": platform.python_version()}
            for name in ("protobuf", "grpcio", "msgspec"):
                versions[name] = importlib.metadata.version(name)
            print(json.dumps(versions))
        case _:
            print("tidemilld: --version takes nothing but -o json", file=sys.stderr)
            return _USAGE
    return 0


def _suggestion(name: str, commands: dict[str, EntryPoint]) -> str:
    import difflib

    near = difflib.get_close_matches(name, sorted(commands), n=1)
    return f"; did you mean {near[0]!r}?" if near else "; see `tidemilld --help`"
