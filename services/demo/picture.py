"""The demo as a picture: lanes of the leader, the hosts and the trainings over time, drawn from the facts of the log.

Pure: facts in, SVG text out. Colours are chosen to be told apart without red and green; every bar also has a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

import msgspec

from statemachines.facts import (
    AttemptEnded,
    AttemptStarted,
    AttemptStopping,
    CheckpointSaved,
    Fact,
    GangPlaced,
    NodeJoined,
    NodeLost,
    NodeSuspected,
    TermOpened,
)

_WIDTH, _LEFT, _RIGHT, _LANE, _TOP = 1120, 120, 24, 34, 56
_COLOURS: Final[Mapping[str, str]] = {
    "leads": "#4477aa",
    "ready": "#9fc5b5",
    "suspect": "#ddaa33",
    "lost": "#bb5566",
    "starting": "#bbccee",
    "running": "#66a1cc",
    "ended": "#dddddd",
}
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#222}.small{font-size:11px;fill:#444}.fault{stroke:#bb5566;"
    "stroke-width:1.5;stroke-dasharray:4 3}.faultword{fill:#bb5566;font-weight:600;font-size:12px}"
)


class Bar(msgspec.Struct):
    """A state of a lane from a time until the next one of that lane."""

    lane: str
    kind: str
    word: str
    from_ms: int
    to_ms: int = 0


class Picture:
    """Collects facts in order; `svg` draws what there is."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        self._bars: list[Bar] = []
        self._open: dict[str, Bar] = {}
        self._dots: list[tuple[str, int, int]] = []
        self._faults: list[tuple[int, str]] = []
        self._first_ms = 0
        self._last_ms = 0

    def take(self, fact: Fact, at_ms: int) -> None:
        """One accepted fact."""
        self._first_ms = self._first_ms or at_ms
        self._last_ms = max(self._last_ms, at_ms)
        match fact:
            case TermOpened(term=term):
                self._begin("leader", "leads", f"term {term}", at_ms)
            case NodeJoined(node=node):
                self._begin(node, "ready", "ready", at_ms)
            case NodeSuspected(node=node):
                self._begin(node, "suspect", "silent", at_ms)
            case NodeLost(node=node):
                self._begin(node, "lost", "lost", at_ms)
            case GangPlaced(job=job, attempt=attempt) if job in self._names:
                self._begin(self._names[job], "starting", f"attempt {attempt}", at_ms)
            case AttemptStarted(job=job, attempt=attempt) if job in self._names:
                self._begin(self._names[job], "running", f"attempt {attempt}", at_ms)
            case AttemptStopping(job=job) if job in self._names:
                self._begin(self._names[job], "suspect", "stopping", at_ms)
            case AttemptEnded(job=job, outcome=outcome) if job in self._names:
                self._begin(self._names[job], "ended", outcome.value, at_ms)
            case CheckpointSaved(job=job, step=step) if job in self._names:
                self._dots.append((self._names[job], at_ms, step))
            case _:
                pass

    def fault(self, text: str, at_ms: int) -> None:
        """Something that was done to the cell."""
        self._faults.append((at_ms, text))

    def svg(self) -> str:
        """The picture."""
        for bar in self._open.values():
            bar.to_ms = self._last_ms
        lanes = [
            "leader",
            *sorted({bar.lane for bar in self._bars} - {"leader", *self._names.values()}),
        ]
        lanes += [
            name for name in self._names.values() if any(bar.lane == name for bar in self._bars)
        ]
        height = _TOP + _LANE * len(lanes) + 40
        parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" role="img" '
                'aria-label="Timeline of the demo: leader terms, hosts, trainings with their checkpoints, faults">'
            ),
            f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        ]
        parts += [self._label(lane, i) for i, lane in enumerate(lanes)]
        parts += [self._bar(bar, lanes.index(bar.lane)) for bar in self._bars if bar.lane in lanes]
        parts += [
            self._dot(at_ms, step, lanes.index(lane))
            for lane, at_ms, step in self._dots
            if lane in lanes
        ]
        parts += [
            self._fault(at_ms, text, i, height) for i, (at_ms, text) in enumerate(self._faults)
        ]
        parts += self._axis(height)
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _begin(self, lane: str, kind: str, word: str, at_ms: int) -> None:
        if lane in self._open:
            self._open[lane].to_ms = at_ms
        self._open[lane] = Bar(lane, kind, word, at_ms)
        self._bars.append(self._open[lane])

    def _x(self, at_ms: int) -> float:
        span = max(1, self._last_ms - self._first_ms)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at_ms - self._first_ms) / span

    def _label(self, lane: str, index: int) -> str:
        return f'<text x="{_LEFT - 10}" y="{_TOP + _LANE * index + 20}" text-anchor="end">{escape(lane)}</text>'

    def _bar(self, bar: Bar, index: int) -> str:
        x, y = self._x(bar.from_ms), _TOP + _LANE * index + 4
        width = max(1.5, self._x(bar.to_ms) - x)
        word = f'<text class="small" x="{x + 4:.1f}" y="{y + 13}">{escape(bar.word)}</text>'
        return (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="22" rx="3" fill="{_COLOURS[bar.kind]}">'
            f"<title>{escape(bar.word)}</title></rect>"
            + (word if width > 7 * len(bar.word) else "")
        )

    def _dot(self, at_ms: int, step: int, index: int) -> str:
        x, y = self._x(at_ms), _TOP + _LANE * index + 22
        return f'<circle cx="{x:.1f}" cy="{y}" r="3" fill="#222"><title>checkpoint of step {step}</title></circle>'

    def _fault(self, at_ms: int, text: str, index: int, height: int) -> str:
        x, y = self._x(at_ms), 18 + 16 * (index % 2)
        return (
            f'<line class="fault" x1="{x:.1f}" y1="{y + 4}" x2="{x:.1f}" y2="{height - 30}"/>'
            f'<text class="faultword" x="{x:.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>'
        )

    def _axis(self, height: int) -> Sequence[str]:
        seconds = (self._last_ms - self._first_ms) // 1000
        every = max(1, seconds // 10)
        return [
            f'<text class="small" x="{self._x(self._first_ms + s * 1000):.1f}" y="{height - 12}" '
            f'text-anchor="middle">{s} s</text>'
            for s in range(0, seconds + 1, every)
        ]
