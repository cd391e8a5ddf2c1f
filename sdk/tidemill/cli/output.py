"""How answers are written: tables for people, fitted to the width; JSON, CSV and names for programs, always the same.

It must never call the cell.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from tidemill.cli.frame import Format

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = TypeVar("Row")
UNBOUNDED: Final = 10_000
STYLES: Final = {
    "running": "green",
    "ready": "green",
    "healthy": "green",
    "succeeded": "green",
    "durable": "green",
    "queued": "yellow",
    "starting": "cyan",
    "saving": "cyan",
    "stopping": "yellow",
    "held": "magenta",
    "suspect": "yellow",
    "degraded": "yellow",
    "draining": "yellow",
    "cordoned": "yellow",
    "failed": "red",
    "lost": "red",
    "faulty": "red",
    "condemned": "red",
    "cancelled": "dim",
}


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: `shown` for people, `raw` for CSV. Where the width is short, the highest `drop` goes first."""

    title: str
    shown: Callable[[Row], str]
    raw: Callable[[Row], object] | None = None
    drop: int = 0
    wide: bool = False
    state: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """A kind of thing, and how lists of it look."""

    columns: Sequence[Column[Row]]
    name: Callable[[Row], str]
    nothing: str


def write_list(rows: Iterable[Row], listing: Listing[Row], form: Format) -> int:
    """Write all rows in the asked form; returns how many."""
    rows = list(rows)
    match form:
        case Format.JSON:
            write_json([plain(row) for row in rows])
        case Format.NAME:
            for row in rows:
                print(listing.name(row))
        case Format.CSV:
            _write_csv(rows, listing)
        case Format.TABLE | Format.WIDE if rows:
            screen().print(table(rows, listing, wide=form is Format.WIDE))
        case Format.TABLE | Format.WIDE:
            print(listing.nothing, file=sys.stderr)
    return len(rows)


def write_json(value: object) -> None:
    """One JSON document, keys in the order of the protos."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def write_json_line(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), flush=True)


def plain(value: Any) -> Any:
    """A message as plain values: every field there, 64-bit numbers as numbers, bytes as hex, enums by name."""
    if not isinstance(value, Message):
        return value.hex() if isinstance(value, bytes) else value
    return {field.name: _plain_field(value, field) for field in value.DESCRIPTOR.fields}


def _plain_field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {key: plain(value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_plain_one(field, item) for item in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return _plain_one(field, value)


def _plain_one(field: Any, value: Any) -> Any:
    if field.enum_type is None:
        return plain(value)
    known = field.enum_type.values_by_number.get(value)
    return known.name if known else value


def _write_csv(rows: Sequence[Row], listing: Listing[Row]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([column.title.lower().replace(" ", "_") for column in listing.columns])
    for row in rows:
        writer.writerow([(column.raw or column.shown)(row) for column in listing.columns])


# ---------------------------------------------------------------- tables


def screen(*, err: bool = False) -> Console:
    """The terminal, or a pipe: then without colour, and as wide as the content unless COLUMNS says otherwise."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    return Console(file=stream, width=width(stream), highlight=False, markup=False, soft_wrap=False)


def width(stream: Any) -> int:
    """Columns to fill: COLUMNS, the terminal's, or no bound for a pipe."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return max(20, int(os.environ["COLUMNS"]))
    return shutil.get_terminal_size().columns if stream.isatty() else UNBOUNDED


def table(rows: Sequence[Row], listing: Listing[Row], *, wide: bool = False) -> Table:
    """The rows, with the columns that fit; `wide` has all columns and cuts nothing."""
    from rich.table import Table
    from rich.text import Text

    room = UNBOUNDED if wide else width(sys.stdout)
    columns = [column for column in listing.columns if wide or not column.wide]
    cells = {id(column): [column.shown(row) for row in rows] for column in columns}
    columns = _fitting(columns, {key: _natural(texts) for key, texts in cells.items()}, room)
    shown = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", collapse_padding=True
    )
    for column in columns:
        shown.add_column(column.title, no_wrap=True, justify="right" if column.right else "left",
                         overflow="fold" if wide else "ellipsis")  # fmt: skip
    for number in range(len(rows)):
        texts = [(column, cells[id(column)][number]) for column in columns]
        shown.add_row(
            *[Text(text, style=style_of(text) if column.state else "") for column, text in texts]
        )
    return shown


def style_of(state: str) -> str:
    """The colour of a state; the word itself is always there too."""
    return STYLES.get(state.split(" ", maxsplit=1)[0].split(",", maxsplit=1)[0], "")


def _natural(texts: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max((cell_len(text) for text in texts), default=0)


def _fitting(
    columns: Sequence[Column[Row]], widths: dict[int, int], room: int
) -> list[Column[Row]]:
    """Leave out the least needed columns until the rest fits; the last may be cut to a dozen cells."""
    kept = list(columns)

    def needed() -> int:
        sizes = [max(widths[id(column)], len(column.title)) for column in kept]
        sizes[-1] = min(sizes[-1], 12)
        return sum(sizes) + 2 * (len(sizes) - 1)

    while needed() > room and any(column.drop for column in kept):
        kept.remove(max(kept, key=lambda column: column.drop))
    return kept


# ---------------------------------------------------------------- words


def age(at_ms: int, now_ms: int) -> str:
    """How long ago, in the two digits that matter; "" for never."""
    return span(max(0, now_ms - at_ms)) if at_ms else ""


def span(ms: int) -> str:
    """A duration as people say it: "45s", "12m", "3h05m", "9d"."""
    seconds = ms // 1000
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 7200:
        return f"{seconds // 60}m"
    if seconds < 172_800:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86_400}d"


def moment(at_ms: int) -> str:
    """Local time to the second; "" for never."""
    return (
        datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
        if at_ms
        else ""
    )


def size(count: int) -> str:
    """Bytes with a binary unit."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
