"""Following what a run prints through turns of its ring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from services.agent.output import read_output
from statemachines.values import RunId

R = RunId("job.1.0")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Ring:
    """A run that prints while it is read: at each look something happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.descriptors: list[int] = []
        (folder / "out.log").touch()

    def turn(self, text: str) -> None:
        """As the supervisor does: the full file becomes the older one."""
        (self.folder / "out.log").replace(self.folder / "out.1.log")
        (self.folder / "out.log").write_text(text)

    def append(self, text: str) -> None:
        with (self.folder / "out.log").open("a") as file:
            file.write(text)

    # --- what is used of the RunFiles port

    def output(self, run: RunId) -> tuple[BinaryIO, ...]:
        self.descriptors.append(open_files())
        paths = [self.folder / name for name in ("out.1.log", "out.log")]
        return tuple(path.open("rb") for path in paths if path.exists())

    def kept(self) -> Mapping[RunId, bool]:
        return {}

    def renew(self, mono_ms: int, boot_ms: int, sequence: int) -> None: ...
    def ask(self, run: RunId, ask: int, at_step: int, *, stop_after: bool) -> None: ...
    def forget(self, run: RunId) -> None: ...


async def test_a_follow_holds_no_more_files_however_often_the_ring_turns(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    turns = iter(range(40))

    def lives() -> bool:
        number = next(turns, None)
        if number is not None:
            ring.append(f"late {number}\n")
            ring.turn(f"turn {number}\n")
            if number % 3 == 0:
                ring.turn(f"again {number}\n")
        return number is not None

    read = b""
    before = open_files()
    async for chunk in read_output(ring, R, tail_bytes=0, follow=True, lives=lives, look_again_s=0):
        read += chunk
    lines = [
        f"{what} {number}"
        for number in range(40)
        for what in ("late", "turn", *(["again"] if number % 3 == 0 else []))
    ]
    assert read.decode().split("\n")[:-1] == lines
    assert max(ring.descriptors) <= before + 2
    assert open_files() == before
