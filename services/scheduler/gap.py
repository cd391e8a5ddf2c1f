"""`tidemilld gap`: record that the leader may go on past inputs that are gone, by leading for one entry.

    tidemilld gap accept TOPIC PARTITION OFFSET --message WHY [--cell NAME --directory DIR ...]

A leader that meets a gap stops and says which command to run. Whoever runs this takes the election, looks whether the
gap is there and ends at OFFSET, writes its term's first entry with InputGapAccepted, and hands over; the schedulers then
go on from OFFSET.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
from collections.abc import Sequence
from typing import Final

import msgspec

from services.runtime import settings as runtime_settings
from services.runtime.exits import ExitCode
from services.runtime.ports import InputGapError, Inputs, PortError
from services.runtime.settings import SettingsError
from services.runtime.shutdown import Shutdown
from services.runtime.telemetry import Telemetry
from services.runtime.topics import LEADER_INPUTS
from services.runtime.wiring import open_cell
from services.scheduler.driver import Scheduler
from services.scheduler.service import run
from services.scheduler.settings import SchedulerSettings
from statemachines.cluster import Cluster
from statemachines.entry import Recorded
from statemachines.facts import InputGapAccepted

# For a broker to say whether a position is there.
_LOOK_S: Final = 10.0


def main(argv: Sequence[str]) -> int:
    """Lead for one entry; answers the exit code."""
    given, rest = _parser().parse_known_args(argv)
    settings = runtime_settings.load(SchedulerSettings, "scheduler", rest)
    shutdown = Shutdown()
    shutdown.install()

    def done(scheduler: Scheduler) -> bool:
        return shutdown.asked or scheduler.leads

    with contextlib.ExitStack() as closing:
        cell = open_cell(settings, "scheduler")
        closing.callback(cell.close)
        inputs = cell.inputs([given.topic])
        closing.callback(inputs.close)
        rules = msgspec.structs.replace(
            settings.rules(), said=lambda cluster: said(given, cluster, inputs)
        )
        telemetry = Telemetry(settings, "gap")
        closing.callback(telemetry.close)
        run(settings, rules, telemetry, until=done, wait=shutdown.wait)
    if shutdown.asked:
        raise PortError("stopped before anything was recorded: another scheduler leads; stop it")
    print(f"recorded: inputs of {given.topic}/{given.partition} before {given.offset} are skipped")
    return ExitCode.STOPPED


def said(given: argparse.Namespace, cluster: Cluster, inputs: Inputs) -> tuple[Recorded, ...]:
    """The fact, from where the cell's decisions stand.

    Raises SettingsError when what is there would be skipped, or decided twice; PortError.
    """
    place = (given.topic, given.partition)
    position = cluster.positions.get(place, 0)
    # The offsets of a topic that was made anew began again: where decisions stand says nothing about them.
    oldest = _oldest_after_gap(inputs, place, 0 if given.made_anew else position)
    if oldest is None and not given.made_anew:
        raise SettingsError(
            f"{given.topic}/{given.partition} is decided up to {position}, and what follows is there: nothing needs "
            "skipping. Start the schedulers."
        )
    if oldest is not None and oldest < position and not given.made_anew:
        raise SettingsError(
            f"{given.topic}/{given.partition} ends before {position}, up to where it is decided. If the topic was deleted "
            "and made again, add --made-anew. If the partition lost its end, bring back a replica that has it: what is "
            f"kept from {oldest} on would be decided twice."
        )
    if given.offset != (oldest or 0):
        raise SettingsError(
            f"{given.topic}/{given.partition}: the oldest input that is there is {oldest or 0}. From {given.offset} on "
            "others would be skipped, or be missing still: give that as OFFSET."
        )
    fact = InputGapAccepted(given.topic, given.partition, position, given.offset, given.message)
    return (Recorded(fact, f"operator:{getpass.getuser()}"),)


def _oldest_after_gap(inputs: Inputs, place: tuple[str, int], position: int) -> int | None:
    """The oldest input that is kept when there is none at the position; None without a gap there."""
    try:
        inputs.read({place: position}, limit=1, timeout_s=_LOOK_S)
    except InputGapError as gap:
        return gap.oldest
    return None


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
