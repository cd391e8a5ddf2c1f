"""Pictures of what the goodput benchmark found. Only draws; numbers come from its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINES: Final = ("#1b6ca8", "#e07a5f", "#81b29a", "#6d597a")
# What may be lost, from the bottom of a bar upwards, and its colour: the same in every picture.
_CAUSES: Final = {
    "checkpoint": "#b8c4d0", "rollback": "#e07a5f", "restart": "#1b6ca8", "detection": "#f2cc8f", "queueing": "#6d597a",
    "held": "#9c6644", "cascade": "#81b29a", "straggler": "#d9d9d9", "planned": "#7f7f7f", "false_alarm": "#c44569",
}  # fmt: skip


def draw(
    path: Path,
    *,
    sweep: Mapping[float, Mapping[float, float]],
    lost: Mapping[str, Mapping[str, Mapping[str, float]]],
    title: str,
) -> None:
    """Left: ETTR over the scale of all hazards, a line a share of lemons. Right: by fleet, share lost by cause, a bar an arm."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, *bars = figure.subplots(1, 1 + len(lost), width_ratios=(1.4, *[1] * len(lost)))
    _lines(left, sweep)
    highest = max(100 * sum(shares.values()) for arms in lost.values() for shares in arms.values())
    found = {cause for arms in lost.values() for shares in arms.values() for cause in shares}
    assert found <= _CAUSES.keys(), "a cause has no colour"
    for axes, (fleet, arms) in zip(bars, lost.items(), strict=True):
        _bars(axes, arms, [cause for cause in _CAUSES if cause in found])
        axes.set(title=f"Where GPU-hours went: {fleet}", ylim=(0, 1.1 * highest))
    bars[0].set_ylabel("% of all GPU-hours of jobs")
    handles, names = bars[-1].get_legend_handles_labels()
    bars[-1].legend(
        handles[::-1], names[::-1], frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _lines(axes: Axes, sweep: Mapping[float, Mapping[float, float]]) -> None:
    for colour, (lemons, points) in zip(_LINES, sweep.items(), strict=False):
        axes.plot(list(points), list(points.values()), "o-", color=colour, label=f"{lemons:.0%}")
    axes.set(
        xlabel="scale of all hazards (1 = 3.8 per 1,000 node-days)",
        ylabel="ETTR of the big job",
        title="More faults, and more of them on few nodes: S",
    )
    axes.legend(title="of hardware faults on lemons", frameon=False)
    axes.grid(alpha=0.3)


def _bars(axes: Axes, arms: Mapping[str, Mapping[str, float]], causes: Sequence[str]) -> None:
    names = [arm.replace("_", "\n") for arm in arms]
    below = [0.0] * len(names)
    for cause in causes:
        heights = [100 * shares.get(cause, 0.0) for shares in arms.values()]
        axes.bar(names, heights, 0.6, bottom=below, label=cause, color=_CAUSES[cause])
        below = [low + high for low, high in zip(below, heights, strict=True)]
    for name, height in zip(names, below, strict=True):
        axes.annotate(f"{height:.1f} %", (name, height), ha="center", va="bottom")
