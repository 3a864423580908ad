"""Draws how far behind BP each arm is, over the number of stages."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from experiments.harness.curve_plot import FAINT, INK

# Told apart by colour-blind eyes, and by their shapes.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#555555", "#b8860b", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
APART = 0.035  # of the height, between two labels


def draw(
    gaps: Mapping[str, Mapping[int, Sequence[float]]], stages: Sequence[int], path: Path, title: str, y_label: str
) -> None:
    """Draws a PNG file: the seeds of an arm as points, their means joined by a line with the arm's name at its end.

    gaps: arm -> K -> a value for each seed. stages: every K of the x axis, which is logarithmic.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"font.family": "sans-serif", "font.size": 10, "text.color": INK}):
        figure = Figure(figsize=(10, 6.5), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        axes = figure.subplots()
        ends = {}
        for (arm, by_K), colour, marker in zip(gaps.items(), cycle(COLOURS), cycle(MARKERS)):
            means = {K: sum(by_K[K]) / len(by_K[K]) for K in sorted(by_K) if by_K[K]}
            if not means:
                continue
            axes.plot(list(means), list(means.values()), color=colour, lw=1.5, zorder=1)
            at = [K for K in means for _ in by_K[K]]
            axes.plot(at, [value for K in means for value in by_K[K]], marker, color=colour, ms=5, alpha=0.7)
            last = max(means)
            ends[arm] = last, means[last], colour
        axes.set_xscale("log", base=2)
        axes.set_xticks(stages, [str(K) for K in stages])
        axes.set_xlim(min(stages) / 1.1, max(stages) * 1.9)  # room for the names
        axes.set_xlabel("stages K, logarithmic")
        axes.set_ylabel(y_label)
        axes.axhline(0, color=INK, lw=1.2)
        axes.margins(y=0.08)
        axes.grid(color=FAINT, lw=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        low, high = axes.get_ylim()
        free = low
        for arm, (K, value, colour) in sorted(ends.items(), key=lambda item: item[1][1]):
            at = max(value, free)
            free = at + APART * (high - low)
            axes.annotate(
                arm, (K, value), xytext=(K * 1.06, at), va="center", fontsize=9, color=colour,
                arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5} if at > value else None,
            )  # fmt: skip
        if not ends:
            axes.text(0.5, 0.5, "nothing has been run yet", transform=axes.transAxes, ha="center")
        figure.savefig(path, dpi=120, metadata={"Software": None})
