"""Quantities as people write them become exact integers, or a message that shows what would be right."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill import units

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "milli"),
    [(4, 4000), (0.5, 500), ("0.1", 100), ("500m", 500), ("0", 0), ("2.125", 2125)],
)
def test_processors(text: object, milli: int) -> None:
    assert units.cpu_milli(text) == milli


@pytest.mark.parametrize(
    "text", ["", "four", "-1", "0.0001", "nan", "inf", "1e400000", "5mm", "0.5m", None]
)
def test_what_is_no_number_of_processors(text: object) -> None:
    with pytest.raises(ValueError, match="is no number of processors"):
        units.cpu_milli(text)


@pytest.mark.parametrize(
    ("text", "mib"),
    [(1024, 1024), ("16GiB", 16384), ("16G", 16384), ("512M", 512), ("512mi", 512), ("1GB", 954), ("1b", 1),
     ("1.5 GiB", 1536), ("0", 0)],
)  # fmt: skip
def test_memory_is_rounded_up_to_a_mebibyte(text: object, mib: int) -> None:
    assert units.memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "1PiX", "1 2"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match="write 16GiB"):
        units.memory_mib(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [(90, 90_000), (0.5, 500), ("90s", 90_000), ("1h30m", 5_400_000), ("2d", 172_800_000), ("250ms", 250),
     ("1:30:00", 5_400_000), ("1:30", 90_000), ("1.5h", 5_400_000), ("1h 5m", 3_900_000)],
)  # fmt: skip
def test_durations(text: object, ms: int) -> None:
    assert units.duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "soon", "1y", "1h30", "h", "-5s", "1:75", "5m!"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s"):
        units.duration_ms(text)


@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_every_duration_of_one_unit_is_exact(count: int, unit: str) -> None:
    scale = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[unit]
    assert units.duration_ms(f"{count}{unit}") == count * scale


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-30T12:00:00Z", 0),
        ("2026-11-30T12:00", 0),
        ("2026-11-30 12:00:01", 1_000),
        ("11:59", -60_000),
        ("12:00:30", 30_000),
        ("-10m", -600_000),
        ("1h ago", -3_600_000),
    ],
)
def test_moments_are_read_on_the_day_and_in_the_zone_of_now(text: str, ms: int) -> None:
    assert units.moment_ms(text, now=NOON) == int(NOON.timestamp() * 1000) + ms


@pytest.mark.parametrize("text", ["", "noon", "25:00", "12:61", "2026-13-01", "tomorrow"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="write 2026-11-30T14:05"):
        units.moment_ms(text, now=NOON)
