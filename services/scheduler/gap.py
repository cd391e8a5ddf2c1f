"""`tidemilld gap`: record that the leader may go on past inputs that are gone, by leading for one entry.

    tidemilld gap accept TOPIC PARTITION OFFSET --message WHY [--cell NAME --directory DIR ...]

A leader that meets a gap stops and says which command to run. Whoever runs this takes the election, writes its term's
first entry with InputGapAccepted, and hands over; the schedulers then go on from OFFSET.
"""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Sequence

import msgspec

from services.runtime import settings as runtime_settings
from services.runtime.exits import ExitCode
from services.runtime.ports import PortError
from services.runtime.settings import SettingsError
from services.runtime.shutdown import Shutdown
from services.runtime.telemetry import Telemetry
from services.runtime.topics import LEADER_INPUTS
from services.scheduler.driver import Scheduler
from services.scheduler.service import run
from services.scheduler.settings import SchedulerSettings
from statemachines.cluster import Cluster
from statemachines.entry import Recorded
from statemachines.facts import InputGapAccepted


def main(argv: Sequence[str]) -> int:
    """Lead for one entry; answers the exit code."""
    given, rest = _parser().parse_known_args(argv)
    settings = runtime_settings.load(SchedulerSettings, "scheduler", rest)
    shutdown = Shutdown()
    shutdown.install()
    rules = msgspec.structs.replace(settings.rules(), said=lambda cluster: said(given, cluster))
    telemetry = Telemetry(settings, "gap")

    def done(scheduler: Scheduler) -> bool:
        return shutdown.asked or scheduler.leads

    try:
        run(settings, rules, telemetry, until=done, wait=shutdown.wait)
    finally:
        telemetry.close()
    if shutdown.asked:
        raise PortError("stopped before anything was recorded: another scheduler leads; stop it")
    print(f"recorded: inputs of {given.topic}/{given.partition} before {given.offset} are skipped")
    return ExitCode.STOPPED


def said(given: argparse.Namespace, cluster: Cluster) -> tuple[Recorded, ...]:
    """The fact, from where the cell's decisions stand; raises SettingsError when nothing would be skipped."""
    position = cluster.positions.get((given.topic, given.partition), 0)
    if given.offset <= position and not given.made_anew:
        raise SettingsError(
            f"{given.topic}/{given.partition} is decided up to {position}: going back to {given.offset} would decide "
            "inputs twice. Give the OFFSET that the stopped leader's message names."
        )
    fact = InputGapAccepted(given.topic, given.partition, position, given.offset, given.message)
    return (Recorded(fact, f"operator:{getpass.getuser()}"),)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidemilld gap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True)
    accept = commands.add_parser("accept", help="let the next leader go on", allow_abbrev=False)
    accept.add_argument("topic", choices=[topic.suffix for topic in LEADER_INPUTS])
    accept.add_argument("partition", type=int)
    accept.add_argument("offset", type=int, help="the next input to decide")
    accept.add_argument(
        "--made-anew",
        action="store_true",
        help="the topic was deleted and made again: its offsets began anew, so going back decides nothing twice",
    )
    accept.add_argument("--message", required=True, help="why their loss is acceptable")
    return parser
