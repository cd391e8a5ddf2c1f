"""The executor on processes of this host: a supervisor for each run (process_shim), and its files.

Owns `<state>/runs/<run>/{lock,pid,exit,out.log,out.1.log,ask,script,spool}`, `<state>/renewed` and `<state>/bell`.
It must never act on a pid whose start time it has not compared, nor say that a run ended while anything of it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import py_compile
import re
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from services.runtime.adapters import process_shim as shim
from services.runtime.adapters import process_tree as tree
from services.runtime.adapters.cgroups import Cgroups, Group, Limits
from services.runtime.adapters.process_spool import left_over
from services.runtime.adapters.removal import remove
from services.runtime.executor import Found, Launch, RunEnd, StartError
from statemachines.values import Evidence, RunId

SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Three numbers of 20 digits, each with what ends it.
STAMP_BYTES: Final = 63
START_S: Final = 30.0
ADOPT_S: Final = 10.0
KILL_S: Final = 5.0
# Above every exit code and every signal.
STATUS_END: Final = 256


class ProcessSettings(msgspec.Struct, frozen=True):
    """Bounds of what runs may use of this host, and of what is kept of them."""

    log_bytes_max: int = 64 << 20
    processes_max: int = 16_384
    # Folders of ended runs, newest first, kept so that their output can be read.
    ended_runs_kept: int = 200


class ProcessExecutor:
    """Executor and RunFiles for one state directory, which one agent at a time may use."""

    def __init__(self, state: Path, settings: ProcessSettings | None = None) -> None:
        self._state = state.resolve()
        self._runs = self._state / "runs"
        self._runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._settings = settings or ProcessSettings()
        # Two agents on one host never mistake each other's processes for their own.
        self.agent = hashlib.sha256(os.fsencode(self._state)).hexdigest()[:16]
        self._cgroups = Cgroups(self.agent)
        # Starts, kills and looks may come from different threads.
        self._lock = threading.Lock()
        self._live: dict[RunId, int | None] = {}
        self._zombies: list[int] = []
        self._bell = _bind(self._state / "bell")
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._renewed = os.open(self._state / "renewed", flags, 0o600)
        if os.fstat(self._renewed).st_size != STAMP_BYTES:
            os.pwrite(
                self._renewed, b" " * STAMP_BYTES, 0
            )  # Room for the first, which says nothing.
        self._shim = _compiled(self._state / "supervisor.pyc")

    def close(self) -> None:
        """Give back the bell. Runs go on under their supervisors."""
        self._bell.close()
        os.close(self._renewed)
        self._cgroups.close()

    # --- the Executor port

    def adopt(self, run: RunId) -> Found:
        folder = self._folder(run)
        if run in self._live:
            return Found.ALIVE
        if not folder.is_dir():
            return Found.ABSENT
        deadline = time.monotonic() + ADOPT_S
        while _is_locked(folder) and not (folder / "pid").exists():
            if time.monotonic() >= deadline:
                break  # It holds its lock, so it lives; how far it got will be seen.
            time.sleep(0.01)
        if _is_locked(folder):
            self._live[run] = None
            return Found.ALIVE
        if not (folder / "pid").exists():
            remove(folder)  # No supervisor got as far as starting anything, and none lives.
            return Found.ABSENT
        self._live[run] = None
        return Found.ENDED

    def start(self, launch: Launch) -> None:
        folder = self._folder(launch.run)
        _check(launch)
        try:
            folder.mkdir(mode=0o700)  # Fails if it exists: nothing is started twice.
            (folder / "spool").mkdir(mode=0o700)
            argv = _argv(launch, folder)
        except FileExistsError:
            raise
        except OSError as error:
            remove(folder)
            raise StartError(
                f"cannot keep the run's state in {folder}: {error.strerror}"
            ) from error
        limits = Limits(launch.cpu_milli, launch.memory_mib, self._settings.processes_max)
        group = self._cgroups.make(launch.run, limits)
        try:
            pid, said = self._spawn(folder, self._order(launch, argv, folder, group))
        except OSError as error:  # No supervisor: no room on the disk, or for one more process.
            group.remove()
            remove(folder)
            raise StartError(f"its supervisor could not be started: {error.strerror}") from error
        with self._lock:
            if said == b"\n":
                self._live[launch.run] = pid
                return
            self._zombies.append(pid)
        self.kill(launch.run)
        group.remove()
        raise StartError(said.decode(errors="replace") or "its supervisor could not be started")

    def terminate(self, run: RunId) -> None:
        supervisor = self._supervisor(run)
        if supervisor is not None:
            tree.send(supervisor, signal.SIGTERM)  # It forwards to the main processes.
            tree.send(supervisor, signal.SIGCONT)  # A run may have stopped it.

    def kill(self, run: RunId) -> bool:
        wanted = tree.marks(run, self.agent)
        group = self._cgroups.find(run)
        supervisor = self._supervisor(run)
        if supervisor is not None:
            tree.send(supervisor, signal.SIGCONT)
        group.kill()
        root = supervisor.pid if supervisor is not None else None
        return tree.end_all(
            lambda: tree.members(wanted, supervisor=root, grouped=group.pids()), budget_s=KILL_S
        )

    def ends(self, timeout_s: float) -> Sequence[RunEnd]:
        found = self._look()
        if not found:
            self._wait(timeout_s)
            found = self._look()
        return found

    # --- the RunFiles port

    def kept(self) -> Mapping[RunId, bool]:
        # Runs can reach this directory: what has another name is none of ours.
        found = (path for path in sorted(self._runs.iterdir()) if SAFE_NAME.fullmatch(path.name))
        return {RunId(path.name): _is_locked(path) for path in found}

    def renew(self, mono_ms: int, boot_ms: int, sequence: int) -> None:
        """In place and of one length: works on a full disk, and no reader sees it half-written."""
        stamp = f"{mono_ms:020d} {boot_ms:020d} {sequence:020d}\n".encode()
        os.pwrite(self._renewed, stamp, 0)

    def ask(self, run: RunId, ask: int, at_step: int, *, stop_after: bool) -> None:
        folder = self._folder(run)
        if folder.is_dir():
            words = {"ask": ask, "at_step": at_step, "stop_after_save": stop_after}
            _replace(folder / "ask", msgspec.json.encode(words) + b"\n")

    def output(self, run: RunId) -> tuple[BinaryIO, ...]:
        folder = self._folder(run)
        found = [_open_regular(folder, name) for name in ("out.1.log", "out.log")]
        files = tuple(file for file in found if file is not None)
        if not files:
            raise FileNotFoundError(f"no output of {run} is kept on this node")
        return files

    def forget(self, run: RunId) -> None:
        self._cgroups.find(run).remove()
        with contextlib.suppress(OSError):
            (self._folder(run) / "forgotten").touch()
        gone = sorted(self._runs.glob("*/forgotten"), key=lambda path: path.stat().st_mtime_ns)
        for marker in gone[: -self._settings.ended_runs_kept]:
            remove(marker.parent)

    # --- starting

    def _folder(self, run: str) -> Path:
        if not SAFE_NAME.fullmatch(run):
            raise ValueError(f"{run!r} is not a run id")
        return self._runs / run

    def _order(self, launch: Launch, argv: Sequence[str], folder: Path, group: Group) -> bytes:
        """All that the supervisor is told, as process_shim.Order reads it."""
        mine = (
            ("TIDEMILL_RUN", launch.run),
            ("TIDEMILL_AGENT", self.agent),
            ("TIDEMILL_ASK_FILE", str(folder / "ask")),
            ("TIDEMILL_SPOOL_DIR", str(folder / "spool")),
        )
        bound = not group.limits_processes() and os.geteuid() != 0
        words: list[str | bytes | int] = [
            shim.MAGIC,
            self._settings.log_bytes_max,
            launch.grace_ms,
            launch.fence_after_ms,
            self._settings.processes_max if bound else 0,
            launch.workdir or str(folder),
            *_counted(group.doors),
            *_counted(argv),
            len(launch.environments),
        ]
        for environment in launch.environments:
            pairs = dict(environment) | dict(mine)
            words += _counted([f"{name}={value}" for name, value in pairs.items()])
        words.append(shim.MAGIC)
        return b"".join(_encode(word) + b"\0" for word in words)

    def _spawn(self, folder: Path, order: bytes) -> tuple[int, bytes]:
        """Start a supervisor that holds the run's lock; its pid and what it said of the start: a newline is success."""
        with contextlib.ExitStack() as files:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            files.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            order_out, order_in = map(files.enter_context, _pipe())
            answer_out, answer_in = map(files.enter_context, _pipe())
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", self._shim, str(folder)],
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, order_out.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, answer_in.fileno(), 1),
                    (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, lock, shim.LOCK_FD),
                ],
                setsid=True,
            )
            order_out.close()
            answer_in.close()
            with contextlib.suppress(BrokenPipeError), order_in:
                order_in.write(order)
            ready, _, _ = select.select([answer_out], [], [], START_S)
            said = os.read(answer_out.fileno(), 1 << 16) if ready else b"it did not answer in time"
        if said != b"\n":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # Our own child, not yet waited for.
        return pid, said

    # --- watching

    def _supervisor(self, run: RunId) -> tree.Process | None:
        """The run's living supervisor. Its lock says that it lives, its start time that the pid is its own."""
        folder = self._folder(run)
        if not _is_locked(folder):
            return None
        with contextlib.suppress(OSError, ValueError):
            pid, started = map(int, (folder / "pid").read_text().split())
            process = tree.look(pid)
            if process is not None and process.started == started:
                return process
        return None

    def _look(self) -> list[RunEnd]:
        with self._lock:
            self._zombies = [pid for pid in self._zombies if os.waitpid(pid, os.WNOHANG) == (0, 0)]
            live = tuple(self._live)
        ended = [run for run in live if not _is_locked(self._folder(run))]
        ends = []
        for run in ended:
            if self.kill(
                run
            ):  # Whatever left its session and its parents dies before the end is told.
                ends.append(self._end(run))
                with self._lock:
                    self._zombies += [pid for pid in (self._live.pop(run),) if pid is not None]
        return ends

    def _end(self, run: RunId) -> RunEnd:
        group = self._cgroups.find(run)
        starved = group.out_of_memory()
        group.remove()
        end = _read_end(run, self._folder(run))
        if starved and end.exit_code + end.signal:
            message = "out of memory: the kernel killed a process at the run's memory limit"
            return msgspec.structs.replace(end, message=message)
        return end

    def _wait(self, timeout_s: float) -> None:
        ready, _, _ = select.select([self._bell], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            while ready:
                self._bell.recv(1)


# --- files


def _compiled(target: Path) -> str:
    """The supervisor's program, compiled once: each run starts sooner, and keeps to the version of this agent."""
    try:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(shim.__file__, str(target), doraise=True, invalidation_mode=mode)
    except OSError:  # A full disk; from source it works too.
        return shim.__file__
    return str(target)


def _check(launch: Launch) -> None:
    """What no host could start is refused before anything is made."""
    texts = [*launch.argv, launch.workdir]
    texts += [text for pairs in launch.environments for pair in pairs for text in pair]
    if any("\0" in text for text in texts):
        raise StartError(
            "the command or its environment holds a NUL character; no program can get it"
        )
    if not launch.argv and not launch.script:
        raise StartError("the launch names neither a command nor a script")


def _argv(launch: Launch, folder: Path) -> list[str]:
    """The command; a script is written beside the run's files and put first."""
    if not launch.script:
        return list(launch.argv)
    script = folder / "script"
    fd = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700)
    with os.fdopen(fd, "wb") as file:
        file.write(launch.script)
    return [str(script), *launch.argv]


def _encode(word: str | bytes | int) -> bytes:
    return word if isinstance(word, bytes) else os.fsencode(str(word))


def _counted(words: Sequence[str]) -> list[str | bytes | int]:
    return [len(words), *words]


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    out, into = os.pipe2(os.O_CLOEXEC)
    return os.fdopen(out, "rb", buffering=0), os.fdopen(into, "wb", buffering=0)


def _is_locked(folder: Path) -> bool:
    """Whether a supervisor holds the run's lock, that is, lives."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # Shared: lookers do not see each other.
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _read_end(run: RunId, folder: Path) -> RunEnd:
    """The end that the supervisor kept; without one, it was killed itself."""
    left = left_over(folder / "spool")
    try:
        kept = (folder / "exit").read_text(errors="replace")
        code, number, evidence, message = kept.split("\n", 1)[0].split(" ", 3)
        return RunEnd(run, Evidence(evidence), _status(code), _status(number), message, left)
    except (OSError, ValueError):
        message = "its supervisor was killed; how it ended is not known"
        return RunEnd(
            run, Evidence.KILLED_AND_REAPED, signal=signal.SIGKILL, message=message, left=left
        )


def _status(text: str) -> int:
    """An exit code or a signal. Raises ValueError for what none can be: a program may have put its own file there."""
    number = int(text)
    if not 0 <= number < STATUS_END:
        raise ValueError(f"{number} is no exit status")
    return number


def _open_regular(folder: Path, name: str) -> BinaryIO | None:
    """A file that the run cannot have replaced by a link, a pipe or a device. None if there is none."""
    try:
        fd = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return os.fdopen(fd, "rb")


def _replace(path: Path, data: bytes) -> None:
    """Readers see the old content or the new."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_bytes(data)
    scratch.replace(path)


def _bind(path: Path) -> socket.socket:
    """A socket that supervisors ring. Bound through its directory's descriptor: addresses are short."""
    path.unlink(missing_ok=True)
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        bell.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    return bell
