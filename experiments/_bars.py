"""One number a method as horizontal bars, best first, a panel a group."""

from collections.abc import Mapping
from pathlib import Path

from experiments._curves import FAINT, INK

BAR, REFERENCE = "#0072b2", "#d55e00"


def draw(
    groups: Mapping[str, Mapping[str, float]], path: Path, title: str, x_label: str, reference: tuple[str, float] | None
) -> None:
    """A PNG file. groups: panel -> label -> value. reference: (label, value) of a line through all panels."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"font.family": "sans-serif", "font.size": 10, "text.color": INK}):
        figure = Figure(figsize=(10, 7), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        panels = figure.subplots(len(groups), 1, sharex=True)
        for axes, (group, values) in zip(panels, groups.items(), strict=True):
            ranked = sorted(values, key=lambda label: values[label], reverse=True)
            bars = axes.barh(ranked, [values[label] for label in ranked], color=BAR, height=0.7)
            axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=9)
            axes.set_title(group, loc="left", fontsize=10)
            axes.grid(axis="x", color=FAINT, lw=0.6)
            axes.set_axisbelow(True)
            for side in ("top", "right", "left"):
                axes.spines[side].set_visible(False)
            if not values:
                axes.set_yticks([])
                axes.text(0.5, 0.5, "nothing has been run yet", transform=axes.transAxes, ha="center")
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
