"""`python -m chaos list | sim [SCENARIO] | bugs | live SCENARIO`; each explains itself with --help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from chaos import hunt, live, scenarios, sim


def main(argv: Sequence[str]) -> int:
    """0: all held; 1: something did not; 2: there is no such thing."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the scenarios")
    sim.arguments(commands.add_parser("sim", help="histories on virtual time, one a seed"))
    hunt.arguments(commands.add_parser("bugs", help="plant known bugs, and see them found"))
    live.arguments(commands.add_parser("live", help="a scenario on live processes"))
    options = parser.parse_args(argv)
    try:
        match options.command:
            case "list":
                return _list()
            case "sim":
                return sim.run(options)
            case "bugs":
                return hunt.run(options)
            case _:
                return live.run(options)
    except scenarios.UnknownScenarioError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2


def _list() -> int:
    known = scenarios.names()
    width = max(map(len, known))
    for name in known:
        scenario = scenarios.load(name)
        where = "" if not scenario.live else "  [live]" if scenario.simulated else "  [only live]"
        print(f"{name:<{width}}  {scenario.summary}{where}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
