"""Theorem 1 as a picture: one panel per K and beta over the learning rate. Two panels below show runs that break the
theorem."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness.pictures import INK, MARK, say_empty
from experiments.harness.run_table import Lines
from fdg_jax.pages.charts import canvas, plain

# Distinct for colour-blind readers, and by their dashes alone. From the front to the back.
BOUNDS = {
    "network": ("corrected, any network", "#0072b2", "-", 1.6),
    "repaired": ("corrected, independent modules", "#009e73", (0, (1, 1.2)), 2.0),
    "printed": ("as printed", "#d55e00", (0, (5, 2)), 1.6),
}
TITLES = {"filling": "the pipeline fills (γ = {:g})", "rate-falls": "the learning rate has fallen from {:g} to {:g}"}


def draw(lines: Lines, Ks: Sequence[int], betas: Sequence[float], broken: Sequence[str], path: Path) -> None:
    """Draws a PNG file."""
    with canvas(path, "", (11, 12), font=9, dpi=110) as figure:
        halves: Any = figure.subfigures(2, 1, height_ratios=(3, 1.1))
        above, below = halves
        heading(above, "Theorem 1: expected change of the loss in a step, and bounds (full pipeline, constant rate)")
        panels = above.subplots(len(betas), len(Ks), sharex=True, sharey=True, squeeze=False)
        for beta, row in zip(betas, panels, strict=True):
            for K, axes in zip(Ks, row, strict=True):
                over_rates(axes, lines.get(f"K{K}-beta{beta:g}"))
                axes.set_title(f"K = {K}, β = {beta:g}", loc="left", fontsize=9)
        above.supxlabel("learning rate γ, in units of 1/L", fontsize=9)
        above.supylabel("change of the expected loss, in units of γM (linear between -0.1 and 0.1)", fontsize=9)
        heading(below, "Two runs that break it as printed: K = 2, β = 1, independent modules, no noise, L = 1")
        last = below.subplots(1, len(broken))
        for name, axes in zip(broken, last, strict=True):
            over_steps(axes, lines.get(name), TITLES[name])
        handles, labels = last[-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)


def heading(part, text: str) -> None:
    part.suptitle(text, x=0.01, ha="left", fontsize=12)


def over_rates(axes, line) -> None:
    """Draws for every rate the step that is closest to the printed bound."""
    axes.set_xscale("log")
    furnish(axes, line)
    axes.set_yticks([-0.1, 0, 0.1, 1, 10, 100], ["-0.1", "0", "0.1", "1", "10", "100"])
    if line:
        x = [rate["L_gamma"] for rate in line["rates"]]
        axes.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
        plot(axes, x, {name: [rate[name] for rate in line["rates"]] for name in (*BOUNDS, "engine")})


def over_steps(axes, line, title: str) -> None:
    """Draws the steps at the last rate of a run."""
    furnish(axes, line)
    axes.set_yticks([-0.1, -0.05, 0, 0.05, 0.1, 1], ["-0.1", "-0.05", "0", "0.05", "0.1", "1"])
    axes.set_xlabel("step t (batches, from 0)")
    axes.set_ylabel("change of the loss")
    if line:
        rates = line["options"]["rates"]
        shown = [t for t, rate in enumerate(rates) if rate == rates[-1]]
        plot(axes, shown, {name: [line[name][t] for t in shown] for name in (*BOUNDS, "engine")})
        axes.set_xticks(shown)
        title = title.format(*dict.fromkeys(rates))
    axes.set_title(title, loc="left", fontsize=9)


def plot(axes, x: Sequence[float], values: dict[str, list[float]]) -> None:
    for name, (label, colour, style, width) in BOUNDS.items():
        axes.plot(x, values[name], color=colour, ls=style, lw=width, label=f"bound: {label}")
    axes.plot(x, values["engine"], "o", color=INK, ms=4, label="measured, by the library's engine")


def furnish(axes, line) -> None:
    axes.set_yscale("symlog", linthresh=0.1)
    plain(axes)
    axes.axhline(0, color=MARK, lw=0.8)
    if line is None:
        say_empty(axes, "not run yet")
