"""Draws how much larger the test errors are than BP's, over the length of the run, with a point for every seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.pictures import INK, MARK, say_empty
from fdg_jax.pages.charts import canvas, plain

# Distinct for colour-blind readers, and by their shapes.
LOOKS = (("#d55e00", "s"), ("#0072b2", "o"), ("#009e73", "^"), ("#555555", "D"))
Series = Mapping[str, Mapping[int, Sequence[float]]]  # arm -> updates -> one value per seed


def draw(
    series: Sequence[tuple[str, Series]], labels: Mapping[str, str], far: str, updates: Sequence[int], path: Path,
    title: str,
) -> None:  # fmt: skip
    """Draws a PNG file.

    Arguments:
        series: (network, its differences in percentage points); the first is drawn filled, the second hollow.
        labels: arm -> its label in the legend, in the order of the styles.
        far: the arm whose errors are so much larger that it gets its own panel.
        updates: the lengths that are labelled on the x axis.
    """
    apart = any(arms.get(far) for _, arms in series)
    with canvas(path, title, (11, 8), font=15, title_font=17) as figure:
        heights = {"height_ratios": [1, 3]} if apart else {}
        panels = list(figure.subplots(1 + apart, 1, sharex=True, squeeze=False, gridspec_kw=heights)[:, 0])
        for hollow, (network, arms) in enumerate(series):
            for number, (arm, label) in enumerate(labels.items()):
                axes = panels[0 if arm == far else -1]
                plot(axes, arms.get(arm, {}), number, f"{label}: {network}", bool(hollow))
        for axes in panels:
            axes.set_xscale("log")
            axes.set_xlim(min(updates) / 1.5, max(updates) * 1.5)
            axes.set_xticks(sorted(updates), [f"{n:,}" for n in sorted(updates)])
            axes.minorticks_off()
            plain(axes, width=0.8)
            axes.spines["left"].set_color(MARK)
            axes.margins(y=0.1)
        panels[-1].axhline(0, color=INK, lw=1.5)
        panels[-1].set_xlabel("updates (batches of 128 images), logarithmic")
        panels[-1].set_ylabel("percentage points; above 0: BP is better")
        found = [axes.get_legend_handles_labels() for axes in reversed(panels)]
        handles, names = ([each for part in parts for each in part] for parts in zip(*found, strict=True))
        if handles:
            figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize=13)
        else:
            say_empty(panels[0], height=0.6)


def plot(axes, by_length: Mapping[int, Sequence[float]], number: int, label: str, hollow: bool) -> None:
    """Draws seeds as points beside one another, and their means joined by a line. number: the number of the arm's
    style."""
    if not by_length:
        return
    colour, marker = LOOKS[number]
    aside = 1 + 0.07 * (number - 1.5)  # so that the arms do not cover each other
    places = [(n * aside, value) for n, seeds in by_length.items() for value in seeds]
    face = "none" if hollow else colour
    look: dict[str, Any] = {"ls": "", "marker": marker, "ms": 9, "mec": colour, "mfc": face, "mew": 1.6, "alpha": 0.75}
    axes.plot([x for x, _ in places], [y for _, y in places], label=label, **look)
    means = [(n * aside, sum(seeds) / len(seeds)) for n, seeds in sorted(by_length.items())]
    axes.plot([x for x, _ in means], [y for _, y in means], color=colour, lw=2, ls=":" if hollow else "-", zorder=1)
