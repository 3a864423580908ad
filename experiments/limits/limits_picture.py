"""The largest stable learning rate over the staleness, a panel per momentum."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.pictures import canvas, plain

# Distinct for colour-blind readers, and by their markers without colours.
LOOKS = {
    "none": ("#000000", "o"),
    "rate": ("#cc79a7", "D"),
    "last": ("#56b4e9", "s"),
    "linear": ("#d55e00", "^"),
    "spike": ("#0072b2", "v"),
    "nesterov": ("#009e73", "x"),
    "combined": ("#b8860b", "P"),
    "double": ("#777777", "*"),
}


def draw(
    found: Callable[[str, float, int], Mapping[str, Any] | None],
    names: Mapping[str, str],
    momenta: Sequence[float],
    taus: Sequence[int],
    path: Path,
) -> None:
    """A PNG file. found: (arm, momentum, staleness) -> its line of results. names: of the arms, in words."""
    title = "The largest stable learning rate on the loss h x²/2: lines by eigenvalues, marks by training"
    with canvas(path, title, (11, 4.6), font=9, title_font=11, dpi=110) as figure:
        panels = figure.subplots(1, len(momenta), sharey=True)
        for m, axes in zip(momenta, panels, strict=True):
            for arm, (colour, marker) in LOOKS.items():
                lines = [(tau, line) for tau in taus if (line := found(arm, m, tau))]
                x = [tau for tau, _ in lines]
                axes.plot(x, [line["eigenvalues"] for _, line in lines], color=colour, linewidth=1.2)
                axes.plot(
                    x, [line["measured"] for _, line in lines], marker, color=colour, markersize=6, fillstyle="none",
                    label=names[arm],
                )  # fmt: skip
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(list(taus), [str(tau) for tau in taus])
            axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
            axes.set_title(f"momentum m = {m:g}", loc="left", fontsize=10)
            axes.set_xlabel("staleness τ (updates)")
            plain(axes)
        panels[0].set_ylabel("largest stable rate · h / (1 - m)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
