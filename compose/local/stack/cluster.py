"""A stack: N real brokers and N real etcd members in one folder, started, hurt and healed by name.

It owns that folder. Every change is made under the folder's lock, and what runs is known from the
members' own identity files, so any number of launchers may come and go, or die, at any time.
"""

import base64
import fcntl
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from compose.local.errors import StackError
from compose.local.stack import layout as plans
from compose.local.stack import ports as loopback
from compose.local.stack import probe, process
from compose.local.stack.layout import Broker, Etcd, Layout, Member
from compose.local.stack.process import Condition
from compose.local.stack.provision import Provisioner, check_machine, environment, write_whole

HEALTHY_S: Final = 90.0
GRACE_S: Final = 15.0
REAP_S: Final = 15.0
PROBE_EVERY_S: Final = 0.1
DEFAULT_SIZE: Final = 3
LARGEST_SIZE: Final = 9

Ports = Literal["auto", "fixed"]


@dataclass(frozen=True, slots=True)
class Status:
    """One member now. `trouble` is empty when it serves."""

    name: str
    condition: Condition
    pid: int | None
    rss_mib: int | None
    address: str
    trouble: str


def _no_one(_: str) -> None:
    """Progress that nobody asked for."""


class Stack:
    """Use `Stack.open` to make or continue one, `Stack.existing` to act on one that is there."""

    def __init__(self, root: Path, layout: Layout) -> None:
        self.root = root
        self.layout = layout

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        brokers: int | None = None,
        etcd: int | None = None,
        ports: Ports | None = None,
    ) -> Self:
        """Plan a stack in this folder, or take up the one that it holds. Starts nothing.

        Raises:
            StackError: the folder holds another stack, or something else.
        """
        root = root.resolve()
        with _locked(root):
            if (root / "stack.json").exists():
                stack = cls.existing(root)
                _refuse_other(stack, brokers=brokers, etcd=etcd, ports=ports)
                return stack
            if any(entry.name != "lock" for entry in root.iterdir()):
                raise StackError(f"{root} holds other files; name an empty folder: --dir PATH")
            wanted = {"brokers": _size(brokers, "brokers"), "etcd": _size(etcd, "etcd members")}
            numbers = (
                plans.fixed_ports(**wanted)
                if ports == "fixed"
                else loopback.choose(plans.ports_needed(**wanted))
            )
            layout = plans.lay_out(cluster_id=_new_cluster_id(), ports=numbers, **wanted)
            write_whole(root / "stack.json", plans.render(layout))
            return cls(root, layout)

    @classmethod
    def existing(cls, root: Path) -> Self:
        """The stack of this folder. Raises StackError when there is none."""
        root = root.resolve()
        try:
            return cls(root, plans.parse((root / "stack.json").read_text()))
        except FileNotFoundError:
            raise StackError(
                f"no stack in {root}; start one: python -m compose.local.stack up --dir {root}"
            ) from None
        except ValueError as error:
            raise StackError(
                f"{root}/stack.json cannot be read ({error}).\n"
                "  stop what runs there by hand, remove the folder, start again"
            ) from error

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to find the stack."""
        return {"TIDEMILL_KAFKA": self.layout.bootstrap, "TIDEMILL_ETCD": self.layout.endpoints}

    @property
    def environment_file(self) -> Path:
        return self.root.with_name(f"{self.root.name}.env")

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.layout.members]

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def up(self, *, timeout_s: float = HEALTHY_S, say: Callable[[str], None] = _no_one) -> None:
        """Bring every member to health, whatever state they are in, and write the env file.

        What this call started is stopped again if it fails or is interrupted.
        """
        started: list[str] = []
        try:
            started += self.start()
            if started:
                say(f"started {', '.join(started)}")
            for name in self.names:
                self.resume(name)
            self.wait_healthy(timeout_s=timeout_s)
        except BaseException:
            with _locked(self.root):
                self._end(started, grace_s=0)
            raise
        lines = (f"{key}={value}\n" for key, value in self.environment.items())
        write_whole(self.environment_file, "".join(lines))

    def down(self, *, grace_s: float = GRACE_S) -> None:
        """End every member: SIGTERM, then SIGKILL after the grace. The data stays."""
        with _locked(self.root):
            self._end(self.names, grace_s=grace_s)
        self.environment_file.unlink(missing_ok=True)

    def wipe(self) -> None:
        """Delete the data of a stack that is down."""
        with _locked(self.root):
            running = [name for name in self.names if self.condition(name) is not Condition.DOWN]
            if running:
                raise StackError(f"{', '.join(running)} still run; first: down")
            shutil.rmtree(self.root)

    def start(self, *names: str) -> list[str]:
        """Start these members (all, if none is named) from their saved data; return those started.

        A member that runs, or is paused, is left as it is. Does not wait for health. If one cannot
        be started, those that this call started before it are ended again.
        """
        with _locked(self.root):
            members = [self._member(name) for name in names or self.names]
            due = [m for m in members if self.condition(m.name) is Condition.DOWN]
            check_machine(self.root, due)
            if not due:
                return []
            provisioner = self._provisioner
            with ThreadPoolExecutor(len(due)) as pool:  # A new broker's storage takes a second.
                commands = list(pool.map(provisioner.prepare, due))
            begun: list[str] = []
            try:
                for member, command in zip(due, commands, strict=True):
                    begun.append(member.name)
                    self._spawn(member, command)
            except BaseException:
                self._end(begun, grace_s=0)
                raise
            return begun

    def terminate(self, name: str, *, grace_s: float = GRACE_S) -> None:
        """SIGTERM one member, SIGKILL after the grace; return when it is gone."""
        with _locked(self.root):
            self._end([self._member(name).name], grace_s=grace_s)

    def kill(self, name: str) -> bool:
        """SIGKILL one member and wait until it is gone; False if it did not run."""
        with _locked(self.root):
            return self._end_at_once(name, self._identity(name))

    def restart(self, name: str, *, timeout_s: float = HEALTHY_S) -> None:
        """End one member in good order, start it from its data and wait until it serves."""
        self.terminate(name)
        self.start(name)
        self.wait_healthy(name, timeout_s=timeout_s)

    def pause(self, name: str) -> None:
        """SIGSTOP one member; return when it stands still. Raises StackError if it is down."""
        self._switch(name, signal.SIGSTOP, Condition.PAUSED)

    def resume(self, name: str) -> None:
        """SIGCONT one member; return when it runs. Raises StackError if it is down."""
        self._switch(name, signal.SIGCONT, Condition.RUNNING)

    def condition(self, name: str) -> Condition:
        return process.condition(self._identity(name))

    def pid(self, name: str) -> int | None:
        """The member's process, if it runs."""
        identity = self._identity(name)
        if identity is None or process.condition(identity) is Condition.DOWN:
            return None
        return identity.pid

    def folder(self, name: str) -> Path:
        """Where a member keeps `data`, `log` and its configuration."""
        return self.root / self._member(name).name

    def log_tail(self, name: str, *, lines: int = 15) -> str:
        return process.tail(self.folder(name) / "log", lines=lines)

    def wait_healthy(self, *names: str, timeout_s: float = HEALTHY_S) -> None:
        """Wait until these members (all, if none is named) serve, and know each other.

        A broker serves when its metadata lists every named broker, an etcd member when it answers
        a linearizable read.

        Raises:
            StackError: one ended, or the time is over; with the end of its log.
        """
        pending = [self._member(name) for name in names or self.names]
        together = [member for member in pending if isinstance(member, Broker)]
        deadline = time.monotonic() + timeout_s
        while True:
            troubles = {m.name: self._trouble(m, together) for m in pending}
            pending = [member for member in pending if troubles[member.name]]
            if not pending:
                return
            for member in pending:
                if self.condition(member.name) is Condition.DOWN:
                    raise StackError(f"{member.name} ended:\n{self.log_tail(member.name)}")
            if time.monotonic() > deadline:
                first = pending[0].name
                waiting = "; ".join(f"{m.name}: {troubles[m.name]}" for m in pending)
                raise StackError(
                    f"not healthy after {timeout_s:.0f} s: {waiting}\n"
                    f"the log of {first} ends with\n{self.log_tail(first)}"
                )
            time.sleep(PROBE_EVERY_S)

    def status(self) -> list[Status]:
        """Every member now, probed once. A broker is asked to know the brokers that run."""
        running = [b for b in self.layout.brokers if self.condition(b.name) is Condition.RUNNING]
        return [self._status(member, running) for member in self.layout.members]

    def _status(self, member: Member, running: list[Broker]) -> Status:
        condition = self.condition(member.name)
        pid = self.pid(member.name)
        trouble = (
            self._trouble(member, running) if condition is Condition.RUNNING else condition.value
        )
        return Status(
            name=member.name,
            condition=condition,
            pid=pid,
            rss_mib=_rss_mib(pid) if pid else None,
            address=f"{loopback.HOST}:{member.client}",
            trouble=trouble,
        )

    def _trouble(self, member: Member, together: list[Broker]) -> str:
        """Why the member does not serve yet; empty when it does."""
        try:
            if isinstance(member, Etcd):
                probe.etcd_healthy(member.http)
                return ""
            known = probe.kafka_metadata(member.client).brokers
        except probe.NotServingError as error:
            return str(error)
        missing = [broker.name for broker in together if broker.node_id not in known]
        return f"does not see {', '.join(missing)}" if missing else ""

    def _member(self, name: str) -> Member:
        for member in self.layout.members:
            if member.name == name:
                return member
        raise StackError(f"no member {name!r}; there are {', '.join(self.names)}")

    def _identity(self, name: str) -> process.Identity | None:
        return process.recorded(self.folder(name) / "pid")

    def _switch(self, name: str, number: signal.Signals, wanted: Condition) -> None:
        identity = self._identity(name)
        if not process.send(identity, number):
            raise StackError(f"{name} is down; start it first: start {name}")
        deadline = time.monotonic() + REAP_S
        while (now := process.condition(identity)) is not wanted:
            if now is Condition.DOWN or time.monotonic() > deadline:
                raise StackError(f"{name} is {now} and not {wanted}:\n{self.log_tail(name)}")
            time.sleep(process.POLL_S)

    def _end(self, names: Sequence[str], *, grace_s: float) -> None:
        """The lock is held. A paused member is thawed, so that it can end in good order."""
        identities = {name: self._identity(name) for name in names}
        for identity in identities.values():
            process.send(identity, signal.SIGTERM)
            process.send(identity, signal.SIGCONT)
        deadline = time.monotonic() + grace_s
        for name, identity in identities.items():
            if not process.wait_gone(identity, timeout_s=deadline - time.monotonic()):
                self._end_at_once(name, identity)

    def _end_at_once(self, name: str, identity: process.Identity | None) -> bool:
        sent = process.send(identity, signal.SIGKILL)
        if identity and not process.wait_gone(identity, timeout_s=REAP_S):
            raise StackError(
                f"{name} (pid {identity.pid}) does not end, even by SIGKILL: a stuck disk?"
            )
        return sent

    @cached_property
    def _provisioner(self) -> Provisioner:
        return Provisioner.find(self.root, self.layout)

    def _spawn(self, member: Member, command: list[str]) -> None:
        home = self.folder(member.name)
        process.spawn(command, record=home / "pid", log=home / "log", environment=environment())


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One change of a stack at a time, across processes and threads; freed by any death."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _refuse_other(
    stack: Stack, *, brokers: int | None, etcd: int | None, ports: Ports | None
) -> None:
    """A saved stack is continued as it is, or not at all."""
    have = {"brokers": len(stack.layout.brokers), "etcd": len(stack.layout.etcd)}
    same_size = brokers in {None, have["brokers"]} and etcd in {None, have["etcd"]}
    used = {port for member in stack.layout.members for port in member.listens}
    same_ports = ports != "fixed" or used <= set(plans.fixed_ports(**have))
    if not (same_size and same_ports):
        raise StackError(
            f"{stack.root} holds a stack of {have['brokers']} brokers and {have['etcd']} etcd "
            "members on ports of its own.\n  continue it without --brokers, --etcd and --ports; "
            "or delete it: down --wipe; or name another folder: --dir PATH"
        )


def _size(wanted: int | None, what: str) -> int:
    size = DEFAULT_SIZE if wanted is None else wanted
    if not 0 <= size <= LARGEST_SIZE:
        raise StackError(f"{size} {what}: choose 0 to {LARGEST_SIZE}")
    return size


def _new_cluster_id() -> str:
    """22 characters as Kafka wants them; the first bit is 0, so none starts like an option."""
    number = uuid.uuid4().int >> 1
    return base64.urlsafe_b64encode(number.to_bytes(16)).decode().rstrip("=")


def _rss_mib(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) >> 10
    return None
