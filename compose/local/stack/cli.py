"""The commands of the local stack. It prints and exits; what they do is in cluster.py."""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from compose import versions
from compose.local import build, toolchain
from compose.local.errors import StackError
from compose.local.stack import process
from compose.local.stack.cluster import GRACE_S, HEALTHY_S, Stack

DEFAULT_FOLDER: Final = Path("out/stack")
HELP_OF_ACTION: Final = {
    "start": "start one member from its data",
    "terminate": "end one member in good order (SIGTERM)",
    "kill": "end one member at once (SIGKILL)",
    "stop": "freeze one member (SIGSTOP); `cont` thaws it",
    "cont": "thaw a frozen member (SIGCONT)",
    "restart": "end one member in good order and start it again",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when it is done, 1 with a reason on stderr, 2 for a wrong command line, 130 on ^C."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (StackError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what this command started is stopped again", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "up":
            return _up(options)
        case "down":
            return _down(options)
        case "status":
            return _status(Stack.existing(options.dir))
        case action:
            return _act(Stack.existing(options.dir), action, options.name)


def _up(options: argparse.Namespace) -> int:
    began = time.monotonic()
    if options.install:
        java = toolchain.java(versions.pinned()["JAVA_VERSION"])
        toolchain.require(java, install=True)
        build.ensure(install=True)
    stack = Stack.open(options.dir, brokers=options.brokers, etcd=options.etcd, ports=options.ports)
    stack.up(timeout_s=options.timeout_s, say=partial(print, flush=True))
    _print_status(stack)
    print(f"\nhealthy after {time.monotonic() - began:.1f} s")
    for key, value in stack.environment.items():
        print(f"{key}={value}")
    print(f"\nin a shell:  set -a; . {stack.environment_file}; set +a")
    print("stop it:     python -m compose.local.stack down" + _folder_option(options.dir))
    return 0


def _down(options: argparse.Namespace) -> int:
    if options.after is not None:
        process.wait_gone(process.current(options.after), timeout_s=None)
    stack = Stack.existing(options.dir)
    stack.down(grace_s=0 if options.wipe else GRACE_S)
    print(f"down: {', '.join(stack.names)}")
    if options.wipe:
        stack.wipe()
        print(f"deleted {stack.root}")
    return 0


def _status(stack: Stack) -> int:
    return 0 if _print_status(stack) else 1


def _act(stack: Stack, action: str, name: str) -> int:
    match action:
        case "start":
            stack.start(name)
            stack.wait_healthy(name)
        case "terminate":
            stack.terminate(name)
        case "kill":
            if not stack.kill(name):
                raise StackError(f"{name} is down already")
        case "stop":
            stack.pause(name)
        case "cont":
            stack.resume(name)
        case "restart":
            stack.restart(name)
        case _:
            raise AssertionError(action)
    print(f"{name} is {stack.condition(name)}")
    return 0


def _print_status(stack: Stack) -> bool:
    """One line a member; whether all serve."""
    rows = stack.status()
    for row in rows:
        size = f"{row.rss_mib} MiB" if row.rss_mib is not None else ""
        state = row.trouble or "serving"
        print(f"{row.name:9} {row.address:16} pid {row.pid or '-':<8} {size:>8}  {state}")
    return not any(row.trouble for row in rows)


def _folder_option(folder: Path) -> str:
    return "" if folder == DEFAULT_FOLDER else f" --dir {folder}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m compose.local.stack",
        description="Real Kafka and etcd as plain processes on loopback, without Docker.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--dir",
        type=Path,
        default=DEFAULT_FOLDER,
        help="folder of data, logs and state (default: %(default)s); DIR.env gets the addresses",
    )
    up = commands.add_parser("up", parents=[where], help="start what is down, wait for health")
    up.add_argument("--brokers", type=int, help="how many Kafka brokers (default: as saved, or 3)")
    up.add_argument("--etcd", type=int, help="how many etcd members (default: as saved, or 3)")
    up.add_argument(
        "--ports",
        choices=["auto", "fixed"],
        help="auto: free ones, kept for the life of the data; fixed: 9092, 9192.., 2379, 2479..",
    )
    up.add_argument("--timeout-s", type=float, default=HEALTHY_S, help="limit for health, seconds")
    up.add_argument("--install", action="store_true", help="as root on Debian: apt-get Java etc.")
    down = commands.add_parser("down", parents=[where], help="end all members; data stays")
    down.add_argument("--wipe", action="store_true", help="delete the folder as well")
    down.add_argument(
        "--after", type=int, metavar="PID", help="wait until this process has ended, then do it"
    )
    commands.add_parser("status", parents=[where], help="show members; exit 0 if all serve")
    for action, text in HELP_OF_ACTION.items():
        one = commands.add_parser(action, parents=[where], help=text)
        one.add_argument("name", metavar="NAME", help="kafka-1, etcd-2, ...")
    return parser
