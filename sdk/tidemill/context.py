"""Which gateway to talk to, and with which token: flags, environment, configuration, embedded cell.

A token is only ever sent to the gateway it was found with; sources are never mixed across cells.
This file must never open a connection.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemill.errors import UsageError


@dataclass(frozen=True, slots=True)
class Context:
    """Where a cell is and how to prove who we are. `source` says where this was found."""

    gateway: str
    token: str
    source: str
    # A file with the CA certificates to trust; empty: plain text, or the system's CAs for "tls://".
    ca: str = ""

    def __repr__(self) -> str:
        return f"Context(gateway={self.gateway!r}, token=..., source={self.source!r})"


def discover(
    *,
    gateway: str = "",
    token: str = "",
    context: str = "",
    cell: str = "",
    env: Mapping[str, str] | None = None,
) -> Context:
    """The first of: arguments, TIDEMILL_GATEWAY, a context of config.toml, an embedded cell.

    `cell` is the name of an embedded cell below ~/.local/share/tidemill, or a directory. Raises UsageError that
    lists what was looked for.
    """
    env = os.environ if env is None else env
    if gateway:
        return Context(gateway, token or env.get("TIDEMILL_TOKEN", ""), "--gateway")
    if not (context or cell):
        if env.get("TIDEMILL_GATEWAY"):
            found = token or env.get("TIDEMILL_TOKEN", "")
            ca = env.get("TIDEMILL_CA", "")
            return Context(env["TIDEMILL_GATEWAY"], found, "TIDEMILL_GATEWAY", ca)
        context = env.get("TIDEMILL_CONTEXT", "")
        cell = env.get("TIDEMILL_CELL", "")
    configured = None if cell else _from_config(context, env)
    return _with_token(configured or _from_cell(cell, env), token)


def config_path(env: Mapping[str, str]) -> Path:
    """~/.config/tidemill/config.toml, or below XDG_CONFIG_HOME."""
    base = env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "~")).expanduser() / ".config"
    return Path(base) / "tidemill" / "config.toml"


def cells_path(env: Mapping[str, str]) -> Path:
    """The directory that holds one directory per embedded cell."""
    base = env.get("XDG_DATA_HOME") or Path(env.get("HOME", "~")).expanduser() / ".local/share"
    return Path(base) / "tidemill"


def _with_token(found: Context, token: str) -> Context:
    return Context(found.gateway, token, found.source, found.ca) if token else found


def _from_config(name: str, env: Mapping[str, str]) -> Context | None:
    path = config_path(env)
    if not path.is_file():
        if name:
            raise UsageError(f"no context {name!r}", why=f"{path} does not exist")
        return None
    try:
        config = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML", why=str(error)) from error
    name = name or str(config.get("current", ""))
    contexts = config.get("contexts", {})
    if not name:
        return None
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise UsageError(f"no context {name!r} in {path}", why=f"known contexts: {known}")
    return _context(name, contexts[name], path)


def _context(name: str, table: Mapping[str, str], path: Path) -> Context:
    if "gateway" not in table:
        raise UsageError(
            f"context {name!r} in {path} names no gateway", why="add gateway = 'HOST:PORT'"
        )
    token = table.get("token", "")
    if file := table.get("token_file"):
        token = _read(Path(file).expanduser(), f"context {name!r} in {path}")
    return Context(table["gateway"], token, f"context {name!r} in {path}", table.get("ca", ""))


def _from_cell(cell: str, env: Mapping[str, str]) -> Context:
    """An embedded cell writes gateway.addr and token into its directory."""
    home = cells_path(env)
    directory = (
        Path(cell).expanduser() if "/" in cell else home / cell if cell else _only_cell(home)
    )
    address = directory / "gateway.addr"
    if not address.is_file():
        raise UsageError(
            f"no cell at {directory}",
            why="it holds no gateway.addr, so no cell runs there",
            next_command=f"tidemilld up --directory {directory}"
            if "/" in cell
            else f"tidemilld up --cell {directory.name}",
        )
    return Context(
        _read(address, "the cell"), _read(directory / "token", "the cell"), f"cell at {directory}"
    )


def _only_cell(home: Path) -> Path:
    cells = sorted(path.parent for path in home.glob("*/gateway.addr"))
    if len(cells) == 1:
        return cells[0]
    if cells:
        raise UsageError(
            "which cell?",
            why="several run here: " + ", ".join(cell.name for cell in cells),
            next_command=f"tidemill --cell {cells[0].name} doctor",
        )
    raise UsageError(
        "no cell to talk to",
        why=f"no --gateway, no TIDEMILL_GATEWAY, no context, and no cell below {home}",
        next_command="tidemilld up",
    )


def _read(path: Path, whose: str) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UsageError(f"cannot read {path} of {whose}", why=str(error.strerror)) from error
