"""Makes one member ready to start: room, ports, folder, storage and configuration on disk.

It starts no member; the caller holds the stack's lock while it works.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from compose import versions
from compose.local import build, toolchain
from compose.local.errors import StackError
from compose.local.stack import layout as plans
from compose.local.stack import ports as loopback
from compose.local.stack.layout import Broker, Etcd, Layout, Member

FORMAT_LIMIT_S: Final = 90.0
# etcd allocates two 64 MB segments at once; a broker's own topics and logs stay below.
ROOM_OF_MEMBER: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Provisioner:
    """The programs of this machine, applied to one stack's plan."""

    root: Path
    layout: Layout
    programs: build.Programs
    java: Path

    @classmethod
    def find(cls, root: Path, layout: Layout) -> Self:
        """Take the programs from the cache, built first if need be."""
        java = toolchain.require(toolchain.java(versions.pinned()["JAVA_VERSION"]))
        return cls(root=root, layout=layout, programs=build.ensure(), java=java)

    def prepare(self, member: Member) -> list[str]:
        """Make the member's folder and configuration; return the command that runs it."""
        home = self.root / member.name
        home.mkdir(exist_ok=True)
        data = home / "data"
        if isinstance(member, Etcd):
            return plans.etcd_command(self.programs.etcd, self.layout, member, data=data)
        if not data.exists():
            self._format(member, home, data)
        settings = home / "broker.properties"
        write_whole(settings, plans.broker_properties(self.layout, member, data=data))
        return self._java_command("kafka.Kafka", home, str(settings))

    def _format(self, broker: Broker, home: Path, data: Path) -> None:
        """Prepare the broker's storage beside its place, then rename: it is whole or absent."""
        with tempfile.TemporaryDirectory(prefix=".format-", dir=home) as scratch:
            fresh = Path(scratch, "data")
            settings = Path(scratch, "broker.properties")
            settings.write_text(plans.broker_properties(self.layout, broker, data=fresh))
            options = ("format", "-t", self.layout.cluster_id, "-c", str(settings))
            done = subprocess.run(
                self._java_command("kafka.tools.StorageTool", home, *options),
                env=environment(),
                cwd=home,
                check=False,
                capture_output=True,
                text=True,
                timeout=FORMAT_LIMIT_S,
            )
            if done.returncode:
                raise StackError(f"{broker.name} cannot be formatted:\n{done.stdout}{done.stderr}")
            fresh.rename(data)

    def _java_command(self, main: str, home: Path, *options: str) -> list[str]:
        return plans.java_command(
            self.java, self.programs.jars, home=home, main=main, options=options
        )


def check_machine(root: Path, due: Sequence[Member]) -> None:
    """Refuse before anything starts what would only fail after it.

    Raises:
        StackError: a port of these members is taken, or the disk has no room for them.
    """
    for member in due:
        if busy := loopback.taken(member.listens):
            raise StackError(
                f"port {busy[0]} of {member.name} is taken by another program.\n"
                f"  see which: ss -ltnp 'sport = :{busy[0]}'\n"
                "  stop that program, or start a new stack: --dir OTHER --ports auto"
            )
    free, needed = shutil.disk_usage(root).free, ROOM_OF_MEMBER * len(due)
    if free < needed:
        raise StackError(
            f"{free >> 20} MiB free under {root}; {len(due)} members need {needed >> 20} MiB.\n"
            "  free space, or name another folder: --dir PATH"
        )


def environment() -> dict[str, str]:
    """Little on purpose: etcd takes any ETCD_* variable for a setting, Java JAVA_TOOL_OPTIONS."""
    kept = {key: os.environ[key] for key in ("HOME", "PATH", "TMPDIR") if key in os.environ}
    return {**kept, "LANG": "C.UTF-8"}


def write_whole(file: Path, text: str) -> None:
    """Replace a file at once: a reader, and a crash, see the old text or the new."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}.new")
    fresh.write_text(text)
    fresh.replace(file)
