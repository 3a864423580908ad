"""Draws the gap of each arm to BP over the number of stages."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from statistics import fmean

from experiments.harness.pictures import INK, say_empty
from fdg_jax.pages.charts import canvas, plain

# Distinct for colour-blind readers, and by their shapes.
STYLES, COLOURS = ("-", "--", ":"), ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#555555", "#b8860b", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
APART = 0.036  # of the height, between two labels


def draw(
    gaps: Mapping[str, Mapping[int, Sequence[float]]], stages: Sequence[int], path: Path, title: str, y_label: str
) -> None:
    """Draws a PNG file: the seeds of an arm as points, their means joined by a line with the arm's name at its end.
    A line is interrupted where a number of stages has no value.

    gaps: arm -> K -> a value for each seed, at least one. stages: every K of the x axis, which is logarithmic.
    """
    with canvas(path, title, (10, 6.5)) as figure:
        axes = figure.subplots()
        ends = {}
        for (arm, by_K), (style, colour), marker in zip(gaps.items(), product(STYLES, COLOURS), cycle(MARKERS)):
            means = [fmean(by_K[K]) if K in by_K else math.nan for K in stages]
            axes.plot(stages, means, color=colour, lw=1.5, ls=style, zorder=1)
            at = [K for K in by_K for _ in by_K[K]]
            axes.plot(at, [value for found in by_K.values() for value in found], marker, color=colour, ms=5, alpha=0.7)
            ends[arm] = max(by_K), fmean(by_K[max(by_K)]), {"color": colour, "ls": style, "marker": marker}
        axes.set_xscale("log", base=2)
        axes.set_xticks(stages, [str(K) for K in stages])
        axes.set_xlim(min(stages) / 1.1, max(stages) * 1.08)  # leaves room for the names on the right
        axes.set_xlabel("stages K, logarithmic")
        axes.set_ylabel(y_label)
        axes.axhline(0, color=INK, lw=1.2)
        axes.margins(y=0.08)
        plain(axes)
        bottom, top = axes.get_ylim()
        places = spread([value for _, value, _ in ends.values()], APART * (top - bottom), top)
        begin, middle, end, text = (max(stages) * times for times in (1.14, 1.22, 1.3, 1.34))
        for (arm, (K, value, look)), at in zip(ends.items(), places, strict=True):
            axes.plot([K, begin], [value, at], color="#bbbbbb", lw=0.6, clip_on=False, zorder=0)
            axes.plot([begin, middle, end], [at] * 3, **look, ms=5, lw=1.5, markevery=[1], clip_on=False)
            axes.text(text, at, arm, va="center", fontsize=9)
        if not ends:
            say_empty(axes)


def spread(values: Sequence[float], apart: float, top: float) -> list[float]:
    """The values, moved so that neighbours are at least `apart` from each other and none is above `top`."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    places = [values[at] for at in order]
    for n in range(1, len(places)):
        places[n] = max(places[n], places[n - 1] + apart)
    for n in reversed(range(len(places))):
        places[n] = min(places[n], places[n + 1] - apart if n + 1 < len(places) else top)
    return [places[order.index(at)] for at in range(len(values))]
