"""The largest stable learning rate under stale gradients, for a parabola, by staleness, momentum and correction.

Everything is linear, so eigenvalues give the limit. The library also trains the parabola, with thousands of curvatures
side by side, and finds the same limit.
"""

import sys
from pathlib import Path
from typing import Any

from experiments.harness import markdown
from experiments.harness.run_table import Lines, Run, Table
from experiments.harness.table_command import main
from fdg_jax.pages.charts import canvas, plain

TAUS, MOMENTA = (1, 3, 7, 15), (0.0, 0.9, 0.99)
ARMS = {
    "none": "no correction",
    "rate": "rate / τ (the rate before it is divided)",
    "last": "anticipate, c = 1 (error feedback)",
    "linear": "anticipate, c = τ (weight prediction)",
    "spike": "anticipate, c = (m - m^(τ+1))/(1-m) (spike compensation)",
    "nesterov": "anticipate, c = m (one Nesterov step)",
    "combined": "anticipate, c = τ + that of spike compensation",
    "double": "anticipate, c = 2τ",
}
# Distinct for colour-blind readers, and by their markers alone.
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
GRID = tuple(
    Run(f"{arm}-m{m:g}-tau{tau}", {"arm": arm, "momentum": m, "staleness": tau})
    for m in MOMENTA
    for tau in TAUS
    for arm in ARMS
)


def measure(run: Run) -> dict[str, Any]:
    """The limits by eigenvalues and by training, as rate * h / (1 - m), and the exact limit of plain SGD."""
    from experiments.limits import eigenvalues, measured
    from fdg_jax.corrections.anticipate import coefficient

    arm, m, tau = run.flags["arm"], run.flags["momentum"], run.flags["staleness"]
    predicts = arm not in ("none", "rate")
    by_roots = eigenvalues.limit(m, coefficient(arm, tau, m) if predicts else 0.0, tau) * (tau if arm == "rate" else 1)
    correct, options = ("anticipate", {"prediction": arm}) if predicts else (arm, {})
    trained = measured.limit(m, tau, correct, options)
    return {
        "eigenvalues": by_roots / (1 - m),
        "measured": trained / (1 - m),
        "exact": eigenvalues.exact_limit(tau) if arm == "none" and m == 0 else None,
    }


def table(lines: Lines, m: float) -> str:
    """The table for one momentum."""

    def cell(arm: str, tau: int) -> str:
        line = lines.get(f"{arm}-m{m:g}-tau{tau}")
        return f"{line['eigenvalues']:.3f} ({line['measured']:.3f})" if line else ""

    rows = ([words, *(cell(arm, tau) for tau in TAUS)] for arm, words in ARMS.items())
    return f"## Momentum {m:g}\n\n" + markdown.table(["", *(f"τ = {tau}" for tau in TAUS)], rows)


def picture(lines: Lines, path: Path) -> None:
    title = "The largest stable learning rate on the loss h x²/2: lines by eigenvalues, marks by training"
    with canvas(path, title, (11, 4.6), font=9, title_font=11, dpi=110) as figure:
        panels = figure.subplots(1, len(MOMENTA), sharey=True)
        for m, axes in zip(MOMENTA, panels, strict=True):
            for arm, (colour, marker) in LOOKS.items():
                found = {tau: line for tau in TAUS if (line := lines.get(f"{arm}-m{m:g}-tau{tau}"))}
                axes.plot([*found], [line["eigenvalues"] for line in found.values()], color=colour, linewidth=1.2)
                axes.plot(
                    [*found], [line["measured"] for line in found.values()], marker, color=colour, markersize=6,
                    fillstyle="none", label=ARMS[arm],
                )  # fmt: skip
            axes.set_xscale("log", base=2)
            axes.set_yscale("log" if lines else "linear")
            axes.set_xticks(list(TAUS), [str(tau) for tau in TAUS])
            axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
            axes.set_title(f"momentum m = {m:g}", loc="left", fontsize=10)
            axes.set_xlabel("staleness τ (updates)")
            plain(axes)
        panels[0].set_ylabel("largest stable rate · h / (1 - m)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)


TABLE = Table(
    "stability", GRID, lambda lines: {"tables": "\n\n".join(table(lines, m) for m in MOMENTA)}, picture, measure=measure
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
