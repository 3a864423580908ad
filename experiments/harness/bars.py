"""Draws one mean per method as horizontal bars, best first, a panel per group; or two series side by side."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from experiments.harness.curve_plot import FAINT, INK, NO_RESULT

BAR, REFERENCE = "#0072b2", "#d55e00"


def label(name: str, diverged: int) -> str:
    """What a bar is called of whose runs so many have diverged."""
    return f"{name} ({diverged} diverged)" if diverged else name


def draw(
    groups: Mapping[str, Mapping[str, Sequence[float]]], path: Path, title: str, x_label: str,
    reference: tuple[str, float] | None, by_number: bool = False,
) -> None:  # fmt: skip
    """Draws a PNG file.

    groups: panel -> label -> values, one for each seed. A bar is their mean, and each of several is a point. Without
        values there is a label and no bar.
    reference: (label, value) of a line through all panels.
    by_number: whether panels and picture are as high as they have bars, instead of equally high.
    """
    numbers = [max(3, len(values)) for values in groups.values()]
    height, ratios = (1.5 + 0.27 * sum(numbers), numbers) if by_number else (7, [1] * len(numbers))
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"font.family": "sans-serif", "font.size": 10, "text.color": INK}):
        figure = Figure(figsize=(10, height), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        panels = figure.subplots(len(groups), 1, sharex=True, gridspec_kw={"height_ratios": ratios})
        for axes, (group, values) in zip(panels, groups.items(), strict=True):
            means = {label: fmean(found) if found else math.inf for label, found in values.items()}
            ranked = sorted(means, key=lambda label: means[label], reverse=True)
            axes.barh(ranked, [means[label] if values[label] else 0 for label in ranked], color=BAR, height=0.7)
            for at, label in enumerate(ranked):
                found = values[label]
                if not found:
                    continue
                if len(found) > 1:
                    axes.plot(found, [at] * len(found), "o", color=INK, ms=3.5)
                axes.annotate(
                    f"{means[label]:.2f}", (max(found), at), xytext=(5, 0), textcoords="offset points", va="center",
                    fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # the line may cross it
                )  # fmt: skip
            axes.margins(x=0.08)  # for the numbers
            if by_number:
                axes.set_ylim(-0.6, max(3, len(values)) - 0.4)  # bars of one height in all panels
            axes.set_title(group, loc="left", fontsize=10)
            axes.grid(axis="x", color=FAINT, lw=0.6)
            axes.set_axisbelow(True)
            for side in ("top", "right", "left"):
                axes.spines[side].set_visible(False)
            if not values:
                axes.set_yticks([])
                axes.text(0.5, 0.5, NO_RESULT, transform=axes.transAxes, ha="center")
            if reference:
                axes.axvline(reference[1], color=REFERENCE, lw=1.2, ls="--")
        if reference:
            label = f"{reference[0]}: {reference[1]:.2f}"
            panels[0].annotate(
                label, (reference[1], 1), xytext=(3, 4), xycoords=("data", "axes fraction"),
                textcoords="offset points", color=REFERENCE, fontsize=9,
            )  # fmt: skip
        panels[-1].set_xlabel(x_label)
        figure.savefig(path, dpi=120, metadata={"Software": None})


def draw_beside(
    labels: Sequence[str], series: Mapping[str, Sequence[float | None]], path: Path, title: str, x_label: str
) -> None:
    """Draws a PNG file of two series.

    labels: along the x axis. series: two names -> test errors in percent, one for each label, None if there is none.
        The y axis does not start at zero, so that differences are visible; the numbers stand above the bars.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"font.family": "sans-serif", "font.size": 10, "text.color": INK}):
        figure = Figure(figsize=(11, 5), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        axes, width = figure.subplots(), 0.8 / len(series)
        for nth, ((name, values), colour) in enumerate(zip(series.items(), (REFERENCE, BAR), strict=True)):
            places = [(at + (nth - (len(series) - 1) / 2) * width, value) for at, value in enumerate(values)]
            there = [(at, value) for at, value in places if value is not None]
            label = name if there else f"{name}: {NO_RESULT}"
            bars = axes.bar([at for at, _ in there], [value for _, value in there], width, color=colour, label=label)
            axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
        shown = [value for values in series.values() for value in values if value is not None]
        if shown:
            axes.set_ylim(min(shown) - 1, max(shown) + 0.5)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.set_xlabel(x_label)
        axes.set_ylabel("test error (% of the test images)")
        axes.grid(axis="y", color=FAINT, lw=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(path, dpi=120, metadata={"Software": None})
