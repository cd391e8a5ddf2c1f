"""Quantities as people write them: processors, memory, durations, moments. Exact integers out.

Each parser raises ValueError with a message that shows what would be right.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from fractions import Fraction
from typing import Final

MIB: Final = 1024**2
# As Slurm reads them, a bare letter is a power of 1024; "GB" is decimal.
_BYTES: Final[dict[str, int]] = {
    "b": 1,
    **{letter: 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def cpu_milli(value: object) -> int:
    """Milli-CPU from 4, 0.5, "500m"."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)(m?)", str(value).strip())
    milli = Fraction(match[1]) * (1 if match[2] else 1000) if match else Fraction(1, 2)
    if milli.denominator != 1:
        raise ValueError(f"{value!r} is no number of processors; write 4, 0.5 or 500m")
    return int(milli)


def memory_mib(value: object) -> int:
    """MiB, rounded up, from "16GiB", "512M", 1024 (MiB)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
    unit = _BYTES.get(match[2] or "mib") if match else None
    if match is None or unit is None:
        raise ValueError(
            f"{value!r} is no amount of memory; write 16GiB, 512MiB or a number of MiB"
        )
    return math.ceil(Fraction(match[1]) * unit / MIB)


def duration_ms(value: object) -> int:
    """Milliseconds from 90 (seconds), "90s", "1h30m", "2d", "250ms", "1:30:00"."""
    text = str(value).strip().lower()
    if re.fullmatch(r"\d+(:[0-5]?\d){1,2}", text):
        seconds = 0
        for part in text.split(":"):
            seconds = seconds * 60 + int(part)
        return seconds * 1000
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return int(Fraction(text) * 1000)
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", text)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])|\s", "", text):
        raise ValueError(f"{value!r} is no duration; write 90s, 15m, 1h30m or 2d")
    return int(sum(Fraction(number) * _MS[unit] for number, unit in parts))


def moment_ms(value: str, *, now: datetime) -> int:
    """Milliseconds since the epoch from an ISO time, "14:05", or "-10m" (ago). `now` gives the day and the zone."""
    text = value.strip()
    if text.startswith("-") or text.endswith(" ago"):
        return _epoch_ms(now) - duration_ms(text.removeprefix("-").removesuffix(" ago"))
    if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
        hour, minute, second = (*map(int, text.split(":")), 0)[:3]
        if hour < 24 and minute < 60 and second < 60:
            return _epoch_ms(now.replace(hour=hour, minute=minute, second=second, microsecond=0))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{value!r} is no time; write 2026-11-30T14:05, 14:05 or -10m (ten minutes ago)"
        ) from None
    return _epoch_ms(moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo))


def _epoch_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
