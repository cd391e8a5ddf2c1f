"""The supervisor of one run: a small process of its own session that outlives the agent and keeps how the run ended.

It starts the run's processes, copies their output into a bounded ring of two files, forwards SIGTERM to the main
processes, kills what they leave behind, and writes the end: whole, synced, once. It fences the run by itself when the
agent's renewals stop, so a dead or frozen agent changes nothing about when an isolated run ends.

It is run by path, with `-I -S` and nothing imported that is not needed: each run has one, so its size counts. The order
comes over stdin; without its last word nothing is started (the agent died while writing it). Its lock file is held for
as long as it lives, so "is it alive" never depends on a pid. It must never block on output, nor fail on a full disk.
"""

# pathlib would add much to the size of this process.
# ruff: noqa: PTH104, PTH105, PTH110, PTH123, PTH208
from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` would add a third to the size
import ctypes
import errno
import os
import select
import sys
import time

MAGIC = b"tidemill-shim-1"
SIGKILL, SIGTERM, SIGCHLD = 9, 15, 17
LOCK_FD = 3
READ_BYTES = 1 << 16
EXIT_FILE_BYTES = 4096
REST_MS = 10_000
KILL_AGAIN_MS = 1_000
PR_SET_CHILD_SUBREAPER = 36


class suppress:  # noqa: N801 - contextlib.suppress, without the quarter of our start-up time that contextlib takes
    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._kinds)


class Order:
    """What to start, read from stdin: words that end with NUL, in the order in which `encode_order` writes them."""

    def __init__(self, words: list[bytes]) -> None:
        self._words = iter(words)
        assert self._word() == MAGIC
        self.log_bytes, self.grace_ms, self.fence_ms, self.processes_max = (
            self._number() for _ in range(4)
        )
        self.workdir = self._word()
        self.cgroups = self._list()
        self.argv = self._list()
        self.environments = [
            dict(pair.split(b"=", 1) for pair in self._list()) for _ in range(self._number())
        ]
        assert self._word() == MAGIC

    def _word(self) -> bytes:
        return next(self._words)

    def _number(self) -> int:
        return int(self._word())

    def _list(self) -> list[bytes]:
        return [self._word() for _ in range(self._number())]


class Output:
    """The ring: a full file becomes the older of two. Output that cannot be written is counted, and dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = max(limit // 2, 1)
        self._size = 0
        self._lost = 0
        self._fd = -1
        self._append(b"")  # There is something to follow from the first moment on.

    def write(self, data: bytes) -> None:
        if self._lost and self._append(b"[tidemill: %d bytes lost, disk full]\n" % self._lost):
            self._lost = 0
        if not self._append(data):
            self._lost += len(data)

    def _append(self, data: bytes) -> bool:
        try:
            if self._fd < 0 or self._size >= self._limit:
                self._turn()
            view = memoryview(data)
            while view:
                written = os.write(self._fd, view)
                self._size += written
                view = view[written:]
        except OSError:
            return False
        return True

    def _turn(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            os.replace("out.log", "out.1.log")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self._fd = os.open("out.log", flags, 0o600)
        self._size = 0


class Fence:
    """When the run must die because the cell no longer answers this node. 0: never."""

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms
        self._mono_ms, self._boot_ms = _clock(time.CLOCK_MONOTONIC), _clock(time.CLOCK_BOOTTIME)
        self._read()

    def left_ms(self) -> int | None:
        """Until it falls by the renewal last seen; None for never."""
        if not self._after_ms:
            return None
        return self._after_ms - self._cut_off_ms()

    def has_fallen(self) -> bool:
        if not self._after_ms or self._cut_off_ms() < self._after_ms:
            return False
        self._read()
        return self._cut_off_ms() >= self._after_ms

    def _cut_off_ms(self) -> int:
        mono, boot = _clock(time.CLOCK_MONOTONIC), _clock(time.CLOCK_BOOTTIME)
        return max(mono - self._mono_ms, boot - self._boot_ms)

    def _read(self) -> None:
        """An absent or torn stamp renews nothing, nor does one of another boot, which may seem to be of the future."""
        with suppress(OSError, ValueError), open("../../renewed", "rb") as file:
            mono, boot = map(int, file.read(256).split()[:2])
            if mono <= _clock(time.CLOCK_MONOTONIC) and boot <= _clock(time.CLOCK_BOOTTIME):
                self._mono_ms, self._boot_ms = mono, boot


class Supervisor:
    """One run, from its first process to its last."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._output = Output(order.log_bytes)
        self._fence = Fence(order.fence_ms)
        self._mains: dict[int, int | None] = {}
        self._first_failure: int | None = None
        self._terminate = False
        self._kill_at_ms: int | None = None
        self._fenced = False
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        _signal.signal(SIGCHLD, lambda *_: None)
        _signal.signal(SIGTERM, self._on_terminate)

    def start(self) -> str:
        """Start all processes; what went wrong, or nothing. If anything did, none is left."""
        if (
            self._fence.has_fallen()
        ):  # The agent was held up: by now the cell may have given this node up.
            return "the cell did not answer this node for too long before the start"
        self._pipe, out = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        failed, report = os.pipe2(os.O_CLOEXEC)
        message = ""
        try:
            for environment in self._order.environments:
                self._mains[self._spawn(environment, out, report)] = None
        except OSError as error:
            message = (
                f"cannot fork: {error.strerror}; the host's or user's limit of processes is reached"
            )
        os.close(out)
        os.close(report)
        while piece := os.read(failed, READ_BYTES):  # Ends when every child has executed or failed.
            message = message or piece.decode(errors="replace").split("\n", 1)[0]
        os.close(failed)
        if message:
            self._kill_all()
        return message

    def run(self) -> tuple[int, int, str, str]:
        """Wait for the end: exit code, signal, evidence, message."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._pipe, select.POLLIN)
        while self._reap():
            self._act()
            poll.poll(self._patience_ms())
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
            if not self._pump():
                with suppress(KeyError):
                    poll.unregister(self._pipe)
        self._kill_all()
        for _ in range(self._order.log_bytes // READ_BYTES + 1):
            if not self._pump():
                break
        return self._end()

    def _spawn(self, environment: dict[bytes, bytes], out: int, report: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        step = "start"
        try:
            os.setsid()
            for number in set(range(1, 32)) - {SIGKILL, 19}:
                _signal.signal(number, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
            self._confine()
            null = os.open("/dev/null", os.O_RDONLY)
            for source, target in ((null, 0), (out, 1), (out, 2)):
                os.dup2(source, target)
            step = "working directory"
            os.chdir(self._order.workdir)
            step = "command"
            os.execvpe(self._order.argv[0], self._order.argv, environment)  # noqa: S606
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the one who waits
            os.write(report, _explain(step, self._order, error).encode(errors="replace") + b"\n")
        finally:
            os._exit(127)

    def _confine(self) -> None:
        """Join the groups that limit the run. A group that vanished limits nothing, and is not a reason to fail."""
        for path in self._order.cgroups:
            with suppress(OSError), open(path, "wb", buffering=0) as group:
                group.write(b"0")
        if self._order.processes_max:
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
            wanted = self._order.processes_max
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))

    def _on_terminate(self, *_: object) -> None:
        self._terminate = True

    def _patience_ms(self) -> int | None:
        waits = [self._fence.left_ms()]
        if self._kill_at_ms is not None:
            waits.append(self._kill_at_ms - _clock(time.CLOCK_MONOTONIC))
        left = [max(wait, 0) + 1 for wait in waits if wait is not None]
        return min(*left, 1 << 30) if left else None

    def _act(self) -> None:
        """What is due: forwarding a signal, ending what a failed process left, fencing."""
        if self._terminate:
            self._terminate = False
            self._signal_mains(SIGTERM)
        if self._first_failure is not None and self._kill_at_ms is None:
            self._kill_at_ms = _clock(time.CLOCK_MONOTONIC) + self._order.grace_ms
            self._signal_mains(SIGTERM)
        if self._kill_at_ms is not None and _clock(time.CLOCK_MONOTONIC) >= self._kill_at_ms:
            self._kill_at_ms += KILL_AGAIN_MS
            self._signal_mains(SIGKILL)
        if not self._fenced and self._fence.has_fallen():
            self._fenced = True
            self._kill_all()

    def _signal_mains(self, number: int) -> None:
        """Only those that were not yet waited for: their pids cannot be anyone else's."""
        for pid, status in self._mains.items():
            if status is None:
                os.kill(pid, number)

    def _reap(self) -> bool:
        """Collect the dead; whether a main process lives."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid in self._mains:
                    self._mains[pid] = code = os.waitstatus_to_exitcode(status)
                    if code and self._first_failure is None:
                        self._first_failure = code
        return None in self._mains.values()

    def _pump(self) -> bool:
        """Copy what was written so far; whether more may come."""
        try:
            data = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._output.write(data)
        return bool(data)

    def _kill_all(self) -> None:
        """Kill every descendant. Orphans come to us, so this reaches those that left their session too."""
        give_up = _clock(time.CLOCK_MONOTONIC) + REST_MS
        while self._has_children() and _clock(time.CLOCK_MONOTONIC) < give_up:
            for pid in _descendants(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGKILL)
            time.sleep(0.002)

    def _has_children(self) -> bool:
        self._reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _end(self) -> tuple[int, int, str, str]:
        code = self._first_failure or 0
        exit_code, number = max(code, 0), max(-code, 0)
        if self._fenced and number == SIGKILL:
            return (
                exit_code,
                number,
                "self_fenced",
                "the cell did not answer this node for too long",
            )
        return exit_code, number, "exit_status", ""


def _clock(clock: int) -> int:
    return time.clock_gettime_ns(clock) // 1_000_000


def _descendants(root: int) -> list[int]:
    """All processes below `root`, as of one look at /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _explain(step: str, order: Order, error: BaseException) -> str:
    """For the user: what could not be done, and what to change."""
    name = os.fsdecode(order.argv[0])
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else repr(error)
    if step == "working directory":
        return (
            f"working directory {os.fsdecode(order.workdir)!r}: {reason}; create it on every node"
        )
    if step != "command" or not isinstance(error, OSError):
        return f"cannot {step}: {reason}"
    if error.errno == errno.ENOENT and "/" in name and os.path.exists(name):
        return f"command {name!r}: the interpreter that its first line names does not exist"
    if error.errno == errno.ENOENT:
        return f"command not found: {name!r}; give a path, or a PATH that holds it on every node"
    if error.errno == errno.EACCES:
        return f"command {name!r} is not executable; chmod +x it, or name its interpreter"
    if error.errno == errno.ENOEXEC:
        return f"command {name!r} is no program; begin a script with #! and its interpreter"
    if error.errno == errno.E2BIG:
        return "arguments and environment are too large for this host; pass large values in files"
    return f"command {name!r}: {reason}"


def _write_synced(name: str, data: bytes) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(fd)
    os.close(fd)


def _sync_directory() -> None:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def _keep_end(exit_code: int, number: int, evidence: str, message: str) -> None:
    """Write the end over the space that was set aside for it, then give it its name: works on a full disk."""
    text = f"{exit_code} {number} {evidence} {message}".encode(errors="replace")[
        : EXIT_FILE_BYTES - 1
    ]
    fd = os.open("exit.tmp", os.O_WRONLY | os.O_NOFOLLOW)
    os.pwrite(fd, text + b"\n" + b" " * (EXIT_FILE_BYTES - len(text) - 1), 0)
    os.fsync(fd)
    os.close(fd)
    os.rename("exit.tmp", "exit")
    _sync_directory()
    os.close(
        LOCK_FD
    )  # From now on the run counts as ended: before the bell, so that who hears it sees it.
    import _socket

    with suppress(OSError):  # A hint; the agent also looks by itself.
        bell = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
        bell.sendto(b"", "../../bell")


def _tell(message: bytes) -> None:
    """Answer the agent that waits for the start; it may be gone."""
    with suppress(OSError):
        os.write(1, message)
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)


def main() -> None:
    os.set_inheritable(LOCK_FD, False)  # Held until we are gone, and by nobody else.
    os.closerange(LOCK_FD + 1, 1024)
    os.chdir(sys.argv[1])
    with open(0, "rb", closefd=False) as stdin:
        words = stdin.read().split(b"\0")
    if words[-2:] != [MAGIC, b""]:
        return  # The agent died before it had said all: nothing was started.
    try:
        _write_synced("exit.tmp", b" " * EXIT_FILE_BYTES)
        with open("/proc/self/stat", "rb") as stat:
            started = stat.read().rpartition(b")")[2].split()[19]
        _write_synced("pid", b"%d %s\n" % (os.getpid(), started))
        _sync_directory()
    except OSError as error:
        _tell(f"cannot keep the run's state: {error.strerror}; make space".encode())
        return
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = Supervisor(Order(words))
    if message := supervisor.start():
        _keep_end(0, 0, "never_started", message)
        _tell(message.encode(errors="replace"))
        return
    _tell(b"\n")
    _keep_end(*supervisor.run())


if __name__ == "__main__":
    main()
