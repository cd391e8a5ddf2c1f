"""A history drawn for a person: one page of HTML with a timeline of terms, faults, nodes and jobs. No script, no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from simulation.faults import Fault
from simulation.history import History
from simulation.referee import Event
from simulation.scenario import Scenario

_LEFT: Final = 170
_WIDTH: Final = 1130
_ROW: Final = 18
_GAP: Final = 12
_BAR: Final = 14
_THIN: Final = 4
# Room for a word in a bar, in units of the drawing a letter.
_LETTER: Final = 6.2
_COLOURS: Final[Mapping[str, str]] = {
    "ready": "#8fc79a", "suspect": "#f2c14e", "lost": "#c8553d", "cordoned": "#a7b0be", "draining": "#8d99ae",
    "queued": "#dfe4ec", "starting": "#a9c9f5", "running": "#3f7cc4", "stopping": "#f0a35e", "held": "#b497d6",
    "succeeded": "#2f7d47", "failed": "#a63d40", "cancelled": "#8a8f98", "incident": "#f3c6b8",
}  # fmt: skip
_TERMS: Final = ("#495867", "#7d8b9c")
_FAULT: Final = "#b5443a"
_NODE_STATES: Final[Mapping[str, str]] = {
    "NodeJoined": "ready", "NodeSuspected": "suspect", "NodeRecovered": "ready", "NodeLost": "lost",
    "NodeCordoned": "cordoned", "NodeDrainStarted": "draining", "NodeUncordoned": "ready",
}  # fmt: skip
_JOB_STATES: Final[Mapping[str, str]] = {
    "JobAdmitted": "queued", "GangPlaced": "starting", "AttemptStarted": "running", "AttemptStopping": "stopping",
    "JobHeld": "held", "JobCancelled": "cancelled",
}  # fmt: skip
# Faults that are over at once, whatever duration was drawn for them.
_AT_ONCE: Final = frozenset(
    {
        "bad checkpoint", "cancel a job", "clock step", "confirm dead", "device event", "foreign record", "kill agent",
        "kill agent at start", "kill agent mid-step", "kill everything", "kill leader", "kill leader at append",
        "kill leader mid-step", "kill service", "kill service mid-step", "lease revoked", "poisoned input",
        "repeated input", "requeue a job", "retention",
    }
)  # fmt: skip
_ENDLESS: Final = frozenset({"fails under load", "link down"})
# Drawn targets are large numbers of which a fault takes the remainder; they tell a person nothing.
_TOLD_TARGETS: Final = 1_000
# Drawn as a line: nothing of it happens any more.
_OVER: Final = frozenset({"succeeded", "failed", "cancelled"})
_MARKS: Final[Mapping[str, str]] = {
    "CheckpointSaved": "#ffffff", "NicFaulted": "#7a1f1f", "NicDegraded": "#b8860b", "DeviceFaulted": "#7a1f1f",
    "DeviceDegraded": "#b8860b", "CheckpointCondemned": "#7a1f1f",
}  # fmt: skip
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
body{{font:14px/1.45 system-ui,sans-serif;color:#1f2733;margin:24px auto;max-width:1340px;padding:0 16px}}
h1{{font-size:20px;margin:0 0 4px}} h2{{font-size:15px;margin:22px 0 6px}} p{{margin:2px 0;color:#4a5464}}
.ok{{color:#2f7d47;font-weight:600}} .bad{{color:#b02a2a;font-weight:600}}
code{{background:#f2f4f8;padding:2px 6px;border-radius:4px}} svg text{{font:11px system-ui,sans-serif;fill:#3b4454}}
svg text.in{{fill:#fff;font-size:10px}} svg text.mark{{font-size:10px}}
.key{{font-size:12px}} .key span{{display:inline-block;margin-right:14px}}
.key i{{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}}
.columns{{columns:280px;font-size:13px}} .columns div{{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}}
.columns b{{display:inline-block;min-width:62px;font-weight:400;color:#7b8494}}
</style><h1>{title}</h1><p>{summary}</p><p class="{grade}">{verdict}</p><p>replay: <code>{command}</code></p>{body}</html>
"""


def html(name: str, scenario: Scenario, history: History, command: str, *, drawn: int) -> str:
    """The page of one simulated history; of so many `drawn` faults it may be the fewest that break it."""
    verdict = history.verdict
    figures = (
        f"{verdict.virtual_s:.0f} s of virtual time, {verdict.entries} entries ({verdict.voided} void), "
        f"{verdict.events} events, history {verdict.history[:16]}"
    )
    title = f"{name}, seed {verdict.seed}"
    return page(title, figures, scenario, history, command, drawn=drawn)


def page(
    title: str, figures: str, scenario: Scenario, history: History, command: str, *, drawn: int
) -> str:
    """The page of any history; `figures` is its size in words."""
    verdict, plan = history.verdict, history.setup.plan
    broken = "<br>".join(escape(line) for line in verdict.broken)
    fewest = len(plan) < drawn
    faults = f"The fewest faults that break it: {len(plan)} of {drawn}" if fewest else "Faults"
    body = "".join(
        [
            f"<p>{figures}</p><h2>Timeline</h2>",
            _key(),
            _timeline(history),
            f"<h2>{faults}</h2><div class=columns>",
            *[f"<div><b>{fault.at_ms / 1000:.1f} s</b>{_words(fault)}</div>" for fault in plan],
            "</div><h2>Seen</h2><div class=columns>",
            *[f"<div><b>{count}</b>{escape(what)}</div>" for what, count in verdict.seen.items()],
            "</div>",
        ]
    )
    return _PAGE.format(
        title=escape(title), summary=escape(scenario.summary),
        grade="bad" if broken else "ok", verdict=broken or "all promises kept", command=escape(command), body=body,
    )  # fmt: skip


def _words(fault: Fault) -> str:
    lasts_ms = _lasts_ms(fault)
    parts = [
        f"{fault.kind}{f' for {lasts_ms / 1000:g} s' if lasts_ms else ''}",
        fault.what,
        f"target {fault.target}" if fault.target < _TOLD_TARGETS else "",
        f"{fault.count or 'all'} of them" if fault.count != 1 else "",
    ]
    return escape(", ".join(part for part in parts if part))


def _lasts_ms(fault: Fault) -> int:
    return 0 if fault.kind in _AT_ONCE else fault.lasts_ms


def _ends_ms(fault: Fault, until_ms: float) -> float:
    """Where no end is given, some faults last until all is healed."""
    endless = fault.kind in _ENDLESS and not fault.lasts_ms
    return until_ms if endless else min(fault.at_ms + _lasts_ms(fault), until_ms)


class _Canvas:
    """Rows of bars and marks over one time axis."""

    def __init__(self, end_ms: float) -> None:
        self._end_ms = max(end_ms, 1.0)
        self._parts: list[str] = []
        self._lines: list[tuple[float, str, str]] = []
        self.y = 24

    def x(self, at_ms: float) -> float:
        return _LEFT + _WIDTH * min(at_ms, self._end_ms) / self._end_ms

    def label(self, text: str) -> None:
        self._parts.append(
            f'<text x="{_LEFT - 8}" y="{self.y + 12}" text-anchor="end">{escape(text)}</text>'
        )

    def bar(
        self, from_ms: float, to_ms: float, colour: str, title: str, *, thin: bool = False
    ) -> None:
        x, width = self.x(from_ms), max(self.x(to_ms) - self.x(from_ms), 2.0)
        y, height = (self.y + (_BAR - _THIN) // 2, _THIN) if thin else (self.y, _BAR)
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="2" fill="{colour}">'
            f"<title>{escape(title)}</title></rect>"
        )

    def word(self, from_ms: float, to_ms: float, *choices: str) -> None:
        """The first that has room in a bar, if any."""
        room = self.x(to_ms) - self.x(from_ms) - 8
        text = next((each for each in choices if len(each) * _LETTER <= room), "")
        if text:
            x = self.x(from_ms) + 5
            self._parts.append(
                f'<text class="in" x="{x:.1f}" y="{self.y + 11}">{escape(text)}</text>'
            )

    def mark(self, at_ms: float, colour: str, title: str) -> None:
        self._parts.append(
            f'<rect x="{self.x(at_ms) - 1:.1f}" y="{self.y + 2}" width="2" height="{_BAR - 4}" fill="{colour}">'
            f"<title>{escape(title)}</title></rect>"
        )

    def line(self, at_ms: float, colour: str, text: str) -> None:
        """From top to bottom."""
        self._lines.append((self.x(at_ms), colour, text))

    def row(self, extra: int = 0) -> None:
        self.y += _ROW + extra

    def svg(self) -> str:
        height, step = self.y + 18, _step(self._end_ms)
        axis = []
        at = 0.0
        while at <= self._end_ms:
            x = self.x(at)
            axis.append(
                f'<line x1="{x:.1f}" y1="16" x2="{x:.1f}" y2="{height - 16}" stroke="#eceff4"/>'
                f'<text x="{x:.1f}" y="12" text-anchor="middle">{at / 1000:.0f} s</text>'
            )
            at += step
        for x, colour, text in self._lines:
            anchor = "end" if x > _LEFT + 0.9 * _WIDTH else "middle"
            axis.append(
                f'<line x1="{x:.1f}" y1="18" x2="{x:.1f}" y2="{height - 14}" stroke="{colour}" stroke-dasharray="3 3"/>'
                f'<text class="mark" x="{x:.1f}" y="{height - 3}" text-anchor="{anchor}">{escape(text)}</text>'
            )
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


def _timeline(history: History) -> str:
    events, end_ms = history.events, history.verdict.virtual_s * 1000
    canvas = _Canvas(end_ms)
    healed_ms = next((event.at_ms for event in events if event.kind == "healed"), None)
    if healed_ms is not None:
        canvas.line(healed_ms, "#2f7d47", "healed: no more faults")
    elif history.verdict.broken:
        canvas.line(end_ms, "#b02a2a", "broken")
    _terms(canvas, events, end_ms)
    _faults(canvas, history.setup.plan, end_ms if healed_ms is None else healed_ms)
    nodes = sorted({event.subject for event in events if event.kind in _NODE_STATES})
    _rows(canvas, history, nodes, _NODE_STATES)
    jobs = dict.fromkeys(event.subject for event in events if event.kind == "JobAdmitted")
    _rows(canvas, history, list(jobs), _JOB_STATES)
    return canvas.svg()


def _rows(
    canvas: _Canvas, history: History, names: Sequence[str], states: Mapping[str, str]
) -> None:
    end_ms = history.verdict.virtual_s * 1000
    known = {job: name for name, job in history.names.items()}
    for name in names:
        canvas.label(known.get(name, name))
        of_it = [event for event in history.events if event.subject == name]
        for from_ms, to_ms, state in _intervals(of_it, states, end_ms):
            title = f"{name} {state} {from_ms / 1000:.1f}-{to_ms / 1000:.1f} s"
            canvas.bar(from_ms, to_ms, _COLOURS[state], title, thin=state in _OVER)
        for event in of_it:
            if event.kind in _MARKS:
                title = f"{event.kind} {event.detail} at {event.at_ms / 1000:.1f} s"
                canvas.mark(event.at_ms, _MARKS[event.kind], title)
        canvas.row()
    canvas.row(_GAP - _ROW)


def _terms(canvas: _Canvas, events: Sequence[Event], end_ms: float) -> None:
    opened = [event for event in events if event.kind == "TermOpened"]
    canvas.label("leader")
    for number, event in enumerate(opened):
        until = opened[number + 1].at_ms if number + 1 < len(opened) else end_ms
        title = f"term {event.detail}: {event.subject}"
        canvas.bar(event.at_ms, until, _TERMS[number % 2], title)
        canvas.word(event.at_ms, until, title, event.detail)
    for event in events:
        if event.kind == "void":
            title = f"void entry at {event.at_ms / 1000:.1f} s: {event.detail}"
            canvas.mark(event.at_ms, "#e4572e", title)
    canvas.row()
    breaker = [event for event in events if event.kind in {"BreakerOpened", "BreakerClosed"}]
    if breaker:
        canvas.label("incident")
        for event, following in zip(breaker, [*breaker[1:], None], strict=True):
            if event.kind == "BreakerOpened":
                until = following.at_ms if following else end_ms
                canvas.bar(event.at_ms, until, _COLOURS["incident"], f"incident {event.subject}")
        canvas.row()
    canvas.row(_GAP - _ROW)


def _faults(canvas: _Canvas, plan: Sequence[Fault], until_ms: float) -> None:
    """One row a kind, in the order in which they begin; a fault is as long as it lasts."""
    struck = [fault for fault in plan if fault.at_ms <= until_ms]
    for kind in dict.fromkeys(fault.kind for fault in struck):
        canvas.label(kind)
        for fault in struck:
            if fault.kind == kind:
                title = f"{fault.at_ms / 1000:.1f} s: {_words(fault)}"
                canvas.bar(fault.at_ms, _ends_ms(fault, until_ms), _FAULT, title)
        canvas.row()
    canvas.row(_GAP - _ROW)


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
    return (
        f'<p class="key">{items}<br><span>white ticks: durable checkpoints</span>'
        "<span>dark ticks: faulty devices, ports and checkpoints</span><span>orange ticks: void entries</span></p>"
    )
