"""What a run is told about itself, read once from the environment that the agent gave it.

docs/reference/environment.md lists the variables. Outside Tidemill there is no job, and everything still works on
a plain directory. This file must never change the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

DEFAULT_DIRECTORY = "checkpoints"
REACHES = ("node", "domain", "cell", "everywhere")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where training starts from; false when that is the beginning."""

    step: int = 0
    uri: str = ""
    # SHA-256 of the manifest, lower-case hex; empty: not known.
    manifest: str = ""

    def __bool__(self) -> bool:
        return bool(self.uri)

    @property
    def path(self) -> Path:
        """The checkpoint's directory. Raises ValueError for a uri that is not a file."""
        parts = urlsplit(self.uri)
        if parts.scheme not in {"", "file"}:
            raise ValueError(f"{self.uri} is not on a file system; load it with your framework")
        return Path(unquote(parts.path) if parts.scheme else self.uri)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run of which attempt this process is."""

    job: str = ""
    attempt: int = 0
    run: str = ""
    rank: int = 0
    world_size: int = 1
    node: str = ""
    gateway: str = ""
    token: str = ""
    # A file with the CA certificates to trust; empty: plain text, or the system's for "tls://".
    ca: str = ""
    resume: ResumePoint = ResumePoint()
    # This attempt's own prefix; nobody else writes below it.
    checkpoint_dir: Path = Path(DEFAULT_DIRECTORY)
    # One of REACHES: from where a checkpoint there can be loaded.
    reach: str = "cell"
    ask_file: Path | None = None
    spool_dir: Path | None = None
    # How often a launcher inside the job has started this rank again within the attempt.
    restart: int = 0

    @property
    def managed(self) -> bool:
        """Whether a cell runs this process."""
        return bool(self.job and self.attempt)


def read_identity(
    env: Mapping[str, str],
    *,
    directory: str | Path | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Identity:
    """Who we are. `directory` counts only outside Tidemill: inside, each attempt has its own prefix.

    A launcher inside the job (torchrun) gives its workers ranks of their own: RANK is nearer than TIDEMILL_RANK, and what
    the program itself says is nearest. Raises ValueError naming the variable that is wrong.
    """
    managed = bool(env.get("TIDEMILL_JOB"))
    checkpoint_dir = Path(directory or DEFAULT_DIRECTORY)
    if managed:
        checkpoint_dir = Path(env.get("TIDEMILL_CHECKPOINT_DIR") or checkpoint_dir)
    if rank is None:
        rank = _integer(env, "RANK", _integer(env, "TIDEMILL_RANK", 0))
    if world_size is None:
        world_size = _integer(env, "WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not below the world size {world_size} (RANK, WORLD_SIZE)")
    spool = Path(env.get("TIDEMILL_SPOOL_DIR") or checkpoint_dir / ".spool")
    ask_file = env.get("TIDEMILL_ASK_FILE")
    return Identity(
        job=env.get("TIDEMILL_JOB", ""),
        attempt=_integer(env, "TIDEMILL_ATTEMPT", 0),
        run=env.get("TIDEMILL_RUN", ""),
        rank=rank,
        world_size=world_size,
        node=env.get("TIDEMILL_NODE", ""),
        gateway=env.get("TIDEMILL_GATEWAY", "") if managed else "",
        token=env.get("TIDEMILL_TOKEN", "") if managed else "",
        ca=env.get("TIDEMILL_CA", "") if managed else "",
        resume=_resume_point(env) if managed else ResumePoint(),
        checkpoint_dir=checkpoint_dir.absolute(),
        reach=_reach(env),
        ask_file=Path(ask_file) if managed and ask_file else None,
        restart=_integer(env, "TORCHELASTIC_RESTART_COUNT", 0),
        spool_dir=(spool / f"rank-{rank}").absolute() if managed else None,
    )


def _resume_point(env: Mapping[str, str]) -> ResumePoint:
    return ResumePoint(
        _integer(env, "TIDEMILL_RESUME_STEP", 0),
        env.get("TIDEMILL_RESUME_URI", ""),
        env.get("TIDEMILL_RESUME_MANIFEST", ""),
    )


def _reach(env: Mapping[str, str]) -> str:
    reach = env.get("TIDEMILL_CHECKPOINT_REACH") or "cell"
    if reach not in REACHES:
        known = ", ".join(REACHES)
        raise ValueError(
            f"environment variable TIDEMILL_CHECKPOINT_REACH={reach!r} is none of {known}"
        )
    return reach


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"environment variable {name}={text!r} is not an integer") from None
