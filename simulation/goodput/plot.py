"""Pictures of what the goodput benchmark found. Only draws; numbers come from its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_COLOURS: Final = ("#1b6ca8", "#e07a5f", "#81b29a", "#6d597a")


def draw(
    path: Path,
    *,
    sweep: Mapping[float, Mapping[float, float]],
    lost: Mapping[str, Mapping[str, float]],
    title: str,
) -> None:
    """Left: ETTR over the scale of all hazards, a line a share of lemons. Right: share lost by cause, a bar an arm."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for colour, (lemons, points) in zip(_COLOURS, sweep.items(), strict=False):
        left.plot(list(points), list(points.values()), "o-", color=colour, label=f"{lemons:.0%}")
    left.set(
        xlabel="scale of all hazards (1 = 3.8 per 1,000 node-days)", ylabel="ETTR of the big job"
    )
    left.set_title("More faults, and more of them on few nodes")
    left.legend(title="faults on lemons", frameon=False)
    left.grid(alpha=0.3)
    _bars(right, lost)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _bars(axes: object, lost: Mapping[str, Mapping[str, float]]) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    arms: Sequence[str] = list(lost)
    causes = sorted({cause for shares in lost.values() for cause in shares})
    below = [0.0] * len(arms)
    for i, cause in enumerate(causes):
        heights = [100 * lost[arm].get(cause, 0.0) for arm in arms]
        axes.bar(
            [arm.replace("_", "\n") for arm in arms],
            heights,
            0.6,
            bottom=below,
            label=cause,
            color=f"C{i}",
        )
        below = [low + high for low, high in zip(below, heights, strict=True)]
    axes.set(ylabel="% of all GPU-hours of jobs")
    axes.set_title("Where GPU-hours went, same faults")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
