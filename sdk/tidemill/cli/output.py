"""How answers are written: tables for people, fitted to the width; JSON, CSV and names for programs, always the same.

It must never call the cell.
"""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from tidemill.cli.frame import Format
from tidemill.cli.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

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
    """One column: `shown` for people, `raw` for CSV.

    Where the width is short, the column with the highest `drop` goes first, and one with a `least` is cut down to it.
    """

    title: str
    shown: Callable[[Row], str]
    raw: Callable[[Row], object] | None = None
    drop: int = 0
    least: int = 0
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
            write_lines(table(rows, listing, wide=form is Format.WIDE))
        case Format.TABLE | Format.WIDE:
            print(listing.nothing, file=sys.stderr)
    return len(rows)


def write_json(value: object) -> None:
    """One JSON document, keys in the order of the protos."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def write_json_line(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), flush=True)


def plain(value: Any) -> Any:
    """A message as plain values: every field there, 64-bit numbers as numbers, bytes as hex, enums by name.

    JSON has no word for what is not a number or is infinite: None.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
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
    write_csv_line([column.title.lower().replace(" ", "_") for column in listing.columns])
    for row in rows:
        write_csv_line([(column.raw or column.shown)(row) for column in listing.columns])


def write_csv_line(values: Iterable[object]) -> None:
    """One row, quoted where it must be."""
    csv.writer(sys.stdout, lineterminator="\n").writerow([visible(str(each)) for each in values])


# ---------------------------------------------------------------- tables


def write_lines(lines: Iterable[Text]) -> None:
    """Lines that are fitted already."""
    console = screen()
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def write_line(console: Console, text: str, style: str = "") -> None:
    """One line as it comes: longer than the screen, it wraps there."""
    console.print(visible(text), style=style, soft_wrap=True)


def screen() -> Console:
    """The terminal, or a pipe: then without colour, and as wide as the content unless COLUMNS says otherwise."""
    from rich.console import Console

    return Console(
        file=sys.stdout, width=width(sys.stdout), highlight=False, markup=False, emoji=False
    )


def width(stream: Any) -> int:
    """Columns to fill: COLUMNS, the terminal's, or no bound for a pipe."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return max(20, int(os.environ["COLUMNS"]))
    return shutil.get_terminal_size().columns if stream.isatty() else UNBOUNDED


def table(rows: Sequence[Row], listing: Listing[Row], *, wide: bool = False) -> list[Text]:
    """The lines of a table, with the columns that fit; `wide` has all columns and cuts nothing."""
    from rich.text import Text

    room = UNBOUNDED if wide else width(sys.stdout)
    columns = [column for column in listing.columns if wide or not column.wide]
    cells = {column.title: [visible(column.shown(row)) for row in rows] for column in columns}
    columns, widths = _fitted(columns, cells, room)
    lines = [
        Text(
            "  ".join(_cell(column, column.title, widths) for column in columns).rstrip(),
            style="bold",
        )
    ]
    for number in range(len(rows)):
        line = Text()
        for column in columns:
            text = cells[column.title][number]
            line.append(_cell(column, text, widths), style=style_of(text) if column.state else "")
            line.append("  ")
        line.rstrip()
        lines.append(line)
    return lines


def style_of(state: str) -> str:
    """The colour of a state; the word itself is always there too."""
    return STYLES.get(state.split(" ", maxsplit=1)[0].split(",", maxsplit=1)[0], "")


def _fitted(
    columns: Sequence[Column[Row]], cells: dict[str, list[str]], room: int
) -> tuple[list[Column[Row]], dict[str, int]]:
    """The columns kept and their widths: the least needed go first, then those that may be cut give way."""
    from rich.cells import cell_len

    natural = {
        column.title: max(map(cell_len, [column.title, *cells[column.title]])) for column in columns
    }
    least = {
        column.title: min(natural[column.title], max(column.least, len(column.title)) or UNBOUNDED)
        if column.least
        else natural[column.title]
        for column in columns
    }
    kept = list(columns)
    while _sum(kept, least) > room and any(column.drop for column in kept):
        kept.remove(max(kept, key=lambda column: column.drop))
    widths = {column.title: natural[column.title] for column in kept}
    for column in reversed(kept):
        excess = max(0, _sum(kept, widths) - room)
        widths[column.title] = max(least[column.title], widths[column.title] - excess)
    return kept, widths


def _sum(columns: Sequence[Column[Row]], widths: dict[str, int]) -> int:
    return sum(widths[column.title] for column in columns) + 2 * (len(columns) - 1)


def _cell(column: Column[Row], text: str, widths: dict[str, int]) -> str:
    """The text at exactly its width, cut with an ellipsis where it must be."""
    from rich.cells import cell_len, set_cell_size

    room = widths[column.title]
    if cell_len(text) > room:
        text = set_cell_size(text, room - 1) + "…"
    padding = " " * (room - cell_len(text))
    return padding + text if column.right else text + padding


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
    if not at_ms:
        return ""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def size(count: int) -> str:
    """Bytes with a binary unit."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
