"""A history drawn for a person: one page of HTML with a timeline of terms, faults, nodes and jobs. No script, no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from simulation.history import History
from simulation.referee import Event
from simulation.scenario import Scenario

_LEFT: Final = 150
_WIDTH: Final = 1150
_ROW: Final = 18
_GAP: Final = 10
_COLOURS: Final[Mapping[str, str]] = {
    "ready": "#7fb685", "suspect": "#f2c14e", "lost": "#c8553d", "cordoned": "#a7b0be", "draining": "#8d99ae",
    "queued": "#e3e7ee", "starting": "#a9c9f5", "running": "#3f7cc4", "stopping": "#f0a35e",
    "held": "#b497d6", "succeeded": "#5b9a68", "failed": "#a63d40", "cancelled": "#8a8f98",
    "incident": "#f7d9d0", "term": "#495867",
}  # fmt: skip
_NODE_STATES: Final[Mapping[str, str]] = {
    "NodeJoined": "ready", "NodeSuspected": "suspect", "NodeRecovered": "ready", "NodeLost": "lost",
    "NodeCordoned": "cordoned", "NodeDrainStarted": "draining", "NodeUncordoned": "ready",
}  # fmt: skip
_JOB_STATES: Final[Mapping[str, str]] = {
    "JobAdmitted": "queued", "GangPlaced": "starting", "AttemptStarted": "running", "AttemptStopping": "stopping",
    "JobHeld": "held", "JobCancelled": "cancelled",
}  # fmt: skip
_MARKS: Final[Mapping[str, str]] = {
    "CheckpointSaved": "#ffffff", "NicFaulted": "#7a1f1f", "NicDegraded": "#b8860b", "DeviceFaulted": "#7a1f1f",
    "CheckpointCondemned": "#7a1f1f",
}  # fmt: skip
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
body{{font:14px/1.45 system-ui,sans-serif;color:#1f2733;margin:24px auto;max-width:1340px;padding:0 16px}}
h1{{font-size:20px;margin:0 0 4px}} h2{{font-size:15px;margin:22px 0 6px}} p{{margin:2px 0;color:#4a5464}}
.ok{{color:#2f7d47;font-weight:600}} .bad{{color:#b02a2a;font-weight:600}}
code{{background:#f2f4f8;padding:2px 6px;border-radius:4px}} table{{border-collapse:collapse;font-size:13px}}
td,th{{text-align:left;padding:2px 14px 2px 0;border-bottom:1px solid #eceff4}} svg text{{font:11px system-ui,sans-serif;fill:#3b4454}}
.key span{{display:inline-block;margin-right:14px}} .key i{{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}}
.columns{{columns:4;font-size:13px}}
</style><h1>{title}</h1><p>{summary}</p><p class="{grade}">{verdict}</p><p>replay: <code>{command}</code></p>{body}</html>
"""


def html(name: str, scenario: Scenario, history: History, command: str) -> str:
    """The page of one history."""
    verdict = history.verdict
    broken = "<br>".join(escape(line) for line in verdict.broken)
    figures = (
        f"{verdict.virtual_s:.0f} s of virtual time, {verdict.entries} entries ({verdict.voided} void), "
        f"{verdict.events} events, history {verdict.history[:16]}"
    )
    faults = [event for event in history.events if event.kind == "fault"]
    body = "".join(
        [
            f"<p>{figures}</p>",
            "<h2>Timeline</h2>",
            _key(),
            _timeline(history.events, verdict.virtual_s * 1000),
            "<h2>Faults</h2>",
            _table(("at", "fault", "target, duration"), [(f"{e.at_ms / 1000:.1f} s", e.subject, e.detail) for e in faults]),
            "<h2>Seen</h2><div class=columns>",
            "".join(f"<div>{escape(what)}: {count}</div>" for what, count in verdict.seen.items()),
            "</div>",
        ]
    )  # fmt: skip
    return _PAGE.format(
        title=escape(f"{name}, seed {verdict.seed}"), summary=escape(scenario.summary),
        grade="bad" if broken else "ok", verdict=broken or "all promises kept", command=escape(command), body=body,
    )  # fmt: skip


class _Canvas:
    """Rows of bars and marks over one time axis."""

    def __init__(self, end_ms: float) -> None:
        self._end_ms = max(end_ms, 1.0)
        self._parts: list[str] = []
        self.y = 24

    def x(self, at_ms: float) -> float:
        return _LEFT + _WIDTH * min(at_ms, self._end_ms) / self._end_ms

    def label(self, text: str) -> None:
        self._parts.append(
            f'<text x="{_LEFT - 8}" y="{self.y + 12}" text-anchor="end">{escape(text)}</text>'
        )

    def bar(self, from_ms: float, to_ms: float, colour: str, title: str) -> None:
        x, width = self.x(from_ms), max(self.x(to_ms) - self.x(from_ms), 1.0)
        self._parts.append(
            f'<rect x="{x:.1f}" y="{self.y}" width="{width:.1f}" height="{_ROW - 4}" rx="2" fill="{colour}">'
            f"<title>{escape(title)}</title></rect>"
        )

    def mark(self, at_ms: float, colour: str, title: str, *, height: int = _ROW - 8) -> None:
        self._parts.append(
            f'<rect x="{self.x(at_ms) - 1:.1f}" y="{self.y + 2}" width="2" height="{height}" fill="{colour}">'
            f"<title>{escape(title)}</title></rect>"
        )

    def row(self, extra: int = 0) -> None:
        self.y += _ROW + extra

    def svg(self) -> str:
        height, step = self.y + 8, _step(self._end_ms)
        axis = []
        at = 0.0
        while at <= self._end_ms:
            x = self.x(at)
            axis.append(
                f'<line x1="{x:.1f}" y1="16" x2="{x:.1f}" y2="{height}" stroke="#eceff4"/>'
                f'<text x="{x:.1f}" y="12" text-anchor="middle">{at / 1000:.0f} s</text>'
            )
            at += step
        width = _LEFT + _WIDTH + 30
        return (
            f'<svg viewBox="0 0 {width} {height}" width="100%" role="img" aria-label="timeline">'
            + "".join([*axis, *self._parts])
            + "</svg>"
        )


def _step(end_ms: float) -> float:
    """A round distance between lines of the axis."""
    for step_s in (5, 10, 20, 30, 60, 120, 300, 600):
        if end_ms / (step_s * 1000) <= 14:
            return step_s * 1000.0
    return 1_800_000.0


def _timeline(events: Sequence[Event], end_ms: float) -> str:
    canvas = _Canvas(end_ms)
    _terms(canvas, events, end_ms)
    _faults(canvas, events)
    for group, states in (("node", _NODE_STATES), ("job", _JOB_STATES)):
        names = sorted({e.subject for e in events if e.kind in states}) if group == "node" else list(
            dict.fromkeys(e.subject for e in events if e.kind == "JobAdmitted")
        )  # fmt: skip
        for name in names:
            canvas.label(name)
            of_it = [event for event in events if event.subject == name]
            for from_ms, to_ms, state in _intervals(of_it, states, end_ms):
                canvas.bar(
                    from_ms,
                    to_ms,
                    _COLOURS[state],
                    f"{name} {state} {from_ms / 1000:.1f}-{to_ms / 1000:.1f} s",
                )
            for event in of_it:
                if event.kind in _MARKS:
                    title = f"{event.kind} {event.detail} at {event.at_ms / 1000:.1f} s"
                    canvas.mark(event.at_ms, _MARKS[event.kind], title)
            canvas.row()
        canvas.row(_GAP - _ROW)
    return canvas.svg()


def _terms(canvas: _Canvas, events: Sequence[Event], end_ms: float) -> None:
    opened = [event for event in events if event.kind == "TermOpened"]
    canvas.label("leader")
    for event, following in zip(opened, [*opened[1:], None], strict=True):
        until = following.at_ms if following else end_ms
        canvas.bar(event.at_ms, until, _COLOURS["term"], f"term {event.detail}: {event.subject}")
    for event in events:
        if event.kind == "void":
            canvas.mark(
                event.at_ms, "#e4572e", f"void entry at {event.at_ms / 1000:.1f} s: {event.detail}"
            )
    canvas.row()
    breaker = [event for event in events if event.kind in {"BreakerOpened", "BreakerClosed"}]
    if breaker:
        canvas.label("incident")
        for event, following in zip(breaker, [*breaker[1:], None], strict=True):
            if event.kind == "BreakerOpened":
                until = following.at_ms if following else end_ms
                canvas.bar(event.at_ms, until, _COLOURS["incident"], f"incident {event.subject}")
        canvas.row()


def _faults(canvas: _Canvas, events: Sequence[Event]) -> None:
    canvas.label("faults")
    for event in events:
        if event.kind == "fault":
            canvas.mark(
                event.at_ms,
                "#b02a2a",
                f"{event.subject} {event.detail} at {event.at_ms / 1000:.1f} s",
            )
        elif event.kind == "healed":
            canvas.mark(event.at_ms, "#2f7d47", "healed: no more faults")
    canvas.row(_GAP)


def _intervals(
    events: Iterable[Event], states: Mapping[str, str], end_ms: float
) -> Iterable[tuple[float, float, str]]:
    """(from, to, state), one after the other."""
    state, since = "", 0.0
    for event in events:
        entered = states.get(event.kind, "")
        if event.kind == "AttemptEnded":
            entered = event.detail.rpartition("-> ")[2]
        if not entered or entered == state:
            continue
        if state:
            yield since, event.at_ms, state
        state, since = entered, float(event.at_ms)
    if state:
        yield since, end_ms, state


def _key() -> str:
    items = "".join(
        f'<span><i style="background:{colour}"></i>{state}</span>'
        for state, colour in _COLOURS.items()
    )
    return f'<p class="key">{items}<span>white ticks: durable checkpoints</span></p>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        "<table><tr>"
        + "".join(f"<th>{escape(each)}</th>" for each in head)
        + f"</tr>{cells}</table>"
    )
