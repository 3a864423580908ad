"""Draws the gap of each arm to BP over the number of stages."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill

from experiments.harness.pictures import BAR, INK, MARK, say_empty
from fdg_jax.pages.charts import canvas, plain

COLUMNS, WORDS = 6, 22  # panels in a row; letters in a line of a panel's title


def draw(
    gaps: Mapping[str, Mapping[int, Sequence[float]]], stages: Sequence[int], path: Path, title: str, y_label: str
) -> None:
    """Draws a PNG file with a panel for each arm. Panels are sorted by the gap at the largest K, the lowest first. A
    panel has the arm's seeds as points, their means joined by a line, and the other arms in grey. A line is interrupted
    where a number of stages has no value.

    gaps: arm -> K -> a value for each seed, at least one. stages: every K of the x axis, which is logarithmic.
    """
    means = {arm: [fmean(by_K[K]) if K in by_K else math.nan for K in stages] for arm, by_K in gaps.items()}
    arms = sorted(gaps, key=lambda arm: fmean(gaps[arm][max(gaps[arm])]))
    rows = max(1, math.ceil(len(arms) / COLUMNS))
    with canvas(path, title, (11, 1 + 2 * rows)) as figure:
        grid = [*figure.subplots(rows, COLUMNS, sharey=True, squeeze=False).flat]
        for axes, arm in zip(grid, arms, strict=False):
            for each in arms:
                axes.plot(stages, means[each], color=MARK, lw=0.5, alpha=0.6)
            at = [K for K, found in gaps[arm].items() for _ in found]
            axes.plot(at, [value for found in gaps[arm].values() for value in found], "o", color=BAR, ms=4, alpha=0.7)
            axes.plot(stages, means[arm], color=BAR, lw=2)
            axes.set_title(fill(arm, WORDS), fontsize=8)
            axes.set_xscale("log", base=2)
            axes.set_xticks(stages, [str(K) for K in stages])
            axes.axhline(0, color=INK, lw=1.2)
            plain(axes)
        for axes in grid[max(1, len(arms)) :]:
            axes.set_axis_off()
        figure.supxlabel("stages K, logarithmic", fontsize=9)
        figure.supylabel(y_label, fontsize=9)
        if not arms:
            say_empty(grid[0])
