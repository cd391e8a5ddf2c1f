"""Settings of a service, from one precedence: flags, then environment, then a TOML file, then defaults.

A service declares a frozen struct of fields with a description, a unit in the name and limits; flags, environment
names, file keys, checks and `--help` follow from it. What is not declared is an error with a suggestion. (msgspec and
argparse: pydantic-settings would cost each process 30 MiB, and a cell at rest has a memory budget.)

    class GatewaySettings(CellSettings, frozen=True, kw_only=True):
        listen: Annotated[str, Meta(description="Address of the API, HOST:PORT")] = "127.0.0.1:7170"

    settings = load(GatewaySettings, "gateway", argv)

Fields of CellSettings are read from TIDEMILL_<FIELD> and the top of the file; those of a service from
TIDEMILL_<SERVICE>_<FIELD> and its table. A flag is --<field>, for both.
"""

from __future__ import annotations

import argparse
import difflib
import os
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

PREFIX: Final = "TIDEMILL_"


class SettingsError(Exception):
    """A setting is wrong; the message names it, where it was given, and what is expected."""


class CellSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every service of a cell is told."""

    cell: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
            description="Name of the cell: letters, digits, dots, dashes and underscores",
        ),
    ] = "main"
    directory: Annotated[
        str, Meta(description="Directory of the cell; empty: ~/.local/share/tidemill/<cell>")
    ] = ""
    log: Annotated[
        Literal["embedded", "kafka"],
        Meta(description="Where the log and the topics are: one file of this machine, or Kafka"),
    ] = "embedded"
    leadership: Annotated[
        Literal["file", "etcd", "always"],
        Meta(
            description="How a leader is elected: a lock file of this machine, etcd, or (only to test that the "
            "chain fences) everyone at once"
        ),
    ] = "file"
    kafka: Annotated[str, Meta(description="Brokers, HOST:PORT,HOST:PORT, when log = kafka")] = ""
    kafka_options: Annotated[
        str,
        Meta(
            description="File of further options of the Kafka client, a name=value a line as librdkafka "
            "calls them: security.protocol, sasl.*, ssl.*"
        ),
    ] = ""
    etcd: Annotated[
        tuple[str, ...],
        Meta(description="Members of etcd, HOST:PORT, comma-separated, when leadership = etcd"),
    ] = ()
    etcd_ca: Annotated[
        str, Meta(description="File with the CA certificates of etcd; empty: no TLS")
    ] = ""
    etcd_cert: Annotated[str, Meta(description="File with our certificate, for etcd")] = ""
    etcd_key: Annotated[str, Meta(description="File with the key of our certificate")] = ""
    etcd_user: Annotated[str, Meta(description="User at etcd; empty: none")] = ""
    etcd_password_file: Annotated[str, Meta(description="File with the user's password")] = ""
    lease_ttl_s: Annotated[
        int,
        Meta(ge=2, le=60, description="Seconds after which a dead leader is given up, with etcd"),
    ] = 3
    monitor_listen: Annotated[
        str,
        Meta(
            description="Address of /metrics, /healthz and /readyz, HOST:PORT; port 0: any free one"
        ),
    ] = "127.0.0.1:0"
    monitor_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Further names by which the monitor may be asked (Host header), comma-separated"
        ),
    ] = ()
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe log line written"),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"],
        Meta(description="Form of log lines; auto: JSON unless stderr is a terminal"),
    ] = "auto"

    @property
    def home(self) -> Path:
        """The directory of the cell."""
        if self.directory:
            return Path(self.directory).expanduser().absolute()
        return Path("~/.local/share/tidemill").expanduser() / self.cell


S = TypeVar("S", bound=CellSettings)
T = TypeVar("T")


def load(
    kind: type[S],
    service: str,
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    summary: str = "",
) -> S:
    """The settings of a service. Raises SettingsError; `--help` and a wrong flag end the process as argparse does."""
    flags = vars(_parser(kind, service, summary).parse_args(argv))
    file = flags.pop("config", None) or environ.get(f"{PREFIX}CONFIG")
    values, origins = _defaults_of_file(kind, service, Path(file) if file else None)
    names = {_environment_name(service, field): field for field in kind.__struct_fields__}
    for name, text in environ.items():
        if name in names:
            values[names[name]], origins[names[name]] = text, f"environment variable {name}"
        elif name.startswith(f"{PREFIX}{service.upper()}_"):
            raise SettingsError(
                f"environment variable {name}: no such setting{_suggestion(name, names)}"
            )
    for field, value in flags.items():
        if value is not None:
            values[field], origins[field] = value, f"flag {_flag(field)}"
    return _convert(kind, values, origins)


def table(
    setting: str, file: str, parse: Callable[[str, str], T], *, package: str, shipped: str
) -> T:
    """A table that users may edit: the file that the setting names, or the one shipped in the package.

    `parse(text, source)` raises ValueError for what cannot be used. Raises SettingsError.
    """
    try:
        if not file:
            return parse(resources.files(package).joinpath(shipped).read_text("utf-8"), shipped)
        return parse(Path(file).expanduser().read_text("utf-8"), file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"setting {setting}: {error}") from error


def _parser(kind: type[CellSettings], service: str, summary: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"tidemilld {service}",
        description=summary,
        epilog="A flag is stronger than the environment, the environment than the file, the file than the default.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", help=f"settings file, TOML (environment: {PREFIX}CONFIG)"
    )
    for field, hint in typing.get_type_hints(kind, include_extras=True).items():
        (bare, *metas) = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        about = metas[0].description if metas else ""
        default = _default(kind, field)
        required = default is msgspec.NODEFAULT
        shown = "required" if required else f"default: {_shown(default)}"
        parser.add_argument(
            _flag(field),
            dest=field,
            metavar=_metavar(bare),
            action=argparse.BooleanOptionalAction if bare is bool else "store",
            help=f"{about} ({shown}; environment: {_environment_name(service, field)})".replace(
                "%", "%%"
            ),
        )
    return parser


def _defaults_of_file(
    kind: type[CellSettings], service: str, path: Path | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of the file for this service, and where each was."""
    if path is None:
        return {}, {}
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}. Give another --config.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    shared = set(CellSettings.__struct_fields__)
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, value in content.items():
        if key not in tables:
            _take(key, value, shared, f"{path}", values, origins)
        elif key != service and difflib.get_close_matches(key, [service], cutoff=0.8):
            raise SettingsError(f"{path}: no table [{key}]; did you mean [{service}]?")
    own = set(kind.__struct_fields__)
    for key, value in tables.get(service, {}).items():
        _take(key, value, own, f"{path}, table [{service}]", values, origins)
    return values, origins


def _take(
    key: str,
    value: object,
    known: set[str],
    where: str,
    values: dict[str, Any],
    origins: dict[str, str],
) -> None:
    if key not in known:
        raise SettingsError(f"{where}: no setting {key!r}{_suggestion(key, known)}")
    values[key], origins[key] = value, f"{where}, key {key}"


def _convert(kind: type[S], values: Mapping[str, Any], origins: Mapping[str, str]) -> S:
    """Check each by itself, so that an error can say where its value came from."""
    hints = typing.get_type_hints(kind, include_extras=True)
    converted = {}
    for field, value in values.items():
        from_text = isinstance(value, str)
        if from_text and typing.get_origin(_bare(hints[field])) is tuple:
            value = [item.strip() for item in value.split(",") if item.strip()]  # noqa: PLW2901
        try:
            converted[field] = msgspec.convert(value, hints[field], strict=not from_text)
        except msgspec.ValidationError as error:
            raise SettingsError(f"{origins[field]}: {value!r}: {error}. See --help.") from error
    missing = [
        field
        for field in kind.__struct_fields__
        if field not in converted and _required(kind, field)
    ]
    if missing:
        raise SettingsError(
            f"setting {missing[0]} is required: give {_flag(missing[0])}. See --help."
        )
    return kind(**converted)


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _default(kind: type[CellSettings], field: str) -> Any:
    fields = {each.name: each for each in msgspec.structs.fields(kind)}
    return fields[field].default


def _required(kind: type[CellSettings], field: str) -> bool:
    return _default(kind, field) is msgspec.NODEFAULT


def _environment_name(service: str, field: str) -> str:
    shared = field in CellSettings.__struct_fields__
    return f"{PREFIX}{field.upper()}" if shared else f"{PREFIX}{service.upper()}_{field.upper()}"


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _metavar(bare: Any) -> str | None:
    if bare is bool:
        return None
    if typing.get_origin(bare) is Literal:
        return "|".join(typing.get_args(bare))
    if typing.get_origin(bare) is tuple:
        return "A,B"
    return {int: "N", float: "X"}.get(bare, "TEXT")


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    return str(default) or "none"


def _suggestion(name: str, known: Mapping[str, object] | set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ". See --help."
