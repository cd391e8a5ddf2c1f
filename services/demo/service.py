"""`tidemilld demo`: a training job loses its node, the cell loses its leader, and the weights come out the same."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec

from services.demo.embedded import EmbeddedCell
from services.demo.story import Failed, Story
from services.demo.timeline import Timeline
from services.runtime.exits import ExitCode
from services.runtime.trial import TrialError
from tidemill import TidemillError

_OUT: Final = Path("out")


def main(argv: Sequence[str]) -> int:
    """Run the demo; 0 when all that must hold did."""
    asked = _parser().parse_args(argv)
    name, cell = _CELLS[asked.on]
    out: Path = asked.file or _OUT / f"{name}.json"
    signal.signal(signal.SIGTERM, _interrupt)
    timeline = Timeline()
    story: Story | None = None
    try:
        with cell(timeline) as story:
            story.run()
        story.result.ok = True
    except (Failed, TrialError, TidemillError) as error:
        timeline.add("bad", str(error))
        if story is None:
            return ExitCode.FAILED
        story.result.problem = str(error)
    except KeyboardInterrupt:
        print("\nInterrupted; nothing is left running.", file=sys.stderr)
        return 130
    story.result.seconds = round(timeline.seconds, 1)
    story.result.timeline = timeline.lines
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(story.result), indent=1) + b"\n")
    if story.picture:
        out.with_suffix(".svg").write_text(story.picture, encoding="utf-8")
    verdict = "all of it held" if story.result.ok else "NOT all of it held"
    timeline.add(
        "good" if story.result.ok else "bad",
        f"{verdict}; {out} has the figures, {out.with_suffix('.svg')} the picture",
    )
    return ExitCode.STOPPED if story.result.ok else ExitCode.FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidemilld demo", description=__doc__)
    parser.add_argument(
        "--distributed",
        dest="on",
        action="store_const",
        const="kafka",
        default="embedded",
        help="on real Kafka and etcd; see docs/how-to/local-stack.md",
    )
    parser.add_argument(
        "--containers",
        dest="on",
        action="store_const",
        const="containers",
        help="on the stack of compose/compose.yml, which runs; see docs/how-to/containers.md",
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        help="where the result goes (default: out/demo.json), and beside it the picture",
    )
    return parser


@contextlib.contextmanager
def _embedded(timeline: Timeline) -> Iterator[Story]:
    timeline.add("act", "start a cell on this machine: gateway, health, two schedulers")
    with EmbeddedCell() as cell, contextlib.closing(Story(cell, timeline)) as story:
        yield story


@contextlib.contextmanager
def _on_kafka(timeline: Timeline) -> Iterator[Story]:
    from services.demo.distributed import STACK, DistributedCell, running_stack

    with running_stack(STACK, timeline) as stack:
        timeline.add("act", "start a cell on them: two gateways, health, two schedulers")
        with DistributedCell(stack) as cell:
            also = (cell.kill_broker, cell.kill_etcd_leader, cell.heal)
            with contextlib.closing(Story(cell, timeline, also, step_delay_s=0.1)) as story:
                yield story


@contextlib.contextmanager
def _in_containers(timeline: Timeline) -> Iterator[Story]:
    from services.demo.containers import ContainerCell

    timeline.add("act", "use the containers: Kafka, etcd, schedulers and health, gateways, hosts")
    cell = ContainerCell()
    also = (cell.kill_broker, cell.kill_etcd_member, cell.heal)
    with contextlib.closing(Story(cell, timeline, also, step_delay_s=0.1)) as story:
        yield story


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


_CELLS: Final[Mapping[str, tuple[str, Callable[[Timeline], AbstractContextManager[Story]]]]] = {
    "embedded": ("demo", _embedded),
    "kafka": ("demo-distributed", _on_kafka),
    "containers": ("demo-containers", _in_containers),
}
