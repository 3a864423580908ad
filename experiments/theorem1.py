"""Theorem 1 in numbers: compares the expected change of the loss in one step with its bound, for many gamma, K and
beta.

The network is linear and its loss a quadratic, so L, M and every expectation are known exactly (theorem/quadratic). The
library itself trains (theorem/decoupled), forward first, with plain SGD. Four more runs look for steps that the theorem
as printed does not allow. Three are fixed runs (one while the pipeline fills, two with a falling learning rate); the
fourth is a search (theorem/adversary). theorem1.md derives the corrected constants.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.harness import markdown
from experiments.harness.run_table import Lines, Run, Table
from experiments.harness.table_command import main

KS, BETAS = (1, 2, 3, 4, 8), (1.0, 0.8, 0.5, 0.2)
RATES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]  # L gamma, up to the largest that the theorem allows
SHARED = {"L_gamma": RATES, "steps": 48, "samples": 256, "seed": 0}
GRID = tuple(Run(f"K{K}-beta{beta:g}", {"K": K, "beta": beta, **SHARED}) for K in KS for beta in BETAS)
FILLING = Run("filling", {"beta": 1.0, "rates": [0.1] * 6})
FALLS = Run("rate-falls", {"beta": 1.0, "rates": [1.0] * 4 + [0.1] * 6})
FALLS_ALWAYS = Run("rate-falls-always", {"beta": 1.0, "rates": [
    1.0, 0.999, 0.998, 0.997, 0.1, 0.0999, 0.0998, 0.0997, 0.0996, 0.0995
]})  # fmt: skip
SEARCH = Run("search", {"K": [2, 3, 4, 8], "problems": 100, "rounds": 200, "seed": 0})


def measure(run: Run) -> dict[str, Any]:
    """The results of a run that are kept, in addition to its flags."""
    from experiments.theorem import measured

    if run in GRID:
        return measured.on_grid(**run.flags)
    return measured.searched(run.flags) if run == SEARCH else measured.step_by_step(**run.flags)


HEADS = (
    "K", "beta", "Z_2/(L M) as printed", "corrected, independent modules", "corrected, any network",
    "needed at most", "steps above the bound as printed: filling, full", "steps above the bound for any network",
    "engine minus exact, at most",
)  # fmt: skip

BROKEN = (
    "run", "L gamma until then, and at t", "t", "change of the loss", "bound as printed",
    "corrected, independent modules", "corrected, any network",
)  # fmt: skip


def row(run: Run, line: Any) -> list[str]:
    head = [str(run.flags["K"]), f"{run.flags['beta']:g}"]
    if line is None:
        return head + [""] * (len(HEADS) - 2)
    above = {name: sum(rate["above"][name] for rate in line["rates"]) for name in line["rates"][0]["above"]}
    return [
        *head,
        *(f"{line['Z2'][name]:.2f}" for name in ("printed", "repaired", "network")),
        f"{max(rate['needed'] for rate in line['rates']):.2f}",
        f"{above['printed, filling']}, {above['printed, full']}",
        str(above["network"]),
        f"{max(rate['deviation'] for rate in line['rates']):.1f} s.e.",
    ]


def broken(lines: Lines) -> str:
    """A table of the runs that break the bound as printed: while the pipeline fills, and with a falling rate."""
    rows = []
    for run in (run for run in (FILLING, FALLS, FALLS_ALWAYS) if run.name in lines):
        line, rates = lines[run.name], run.flags["rates"]
        t = next((t for t, rate in enumerate(rates) if rate < rates[0] / 2), 0)
        numbers = [f"{line[name][t]:+.4f}" for name in ("engine", "printed", "repaired", "network")]
        rows.append([f"`{run.name}`", ", ".join(f"{rate:g}" for rate in rates[: t + 1]), str(t), *numbers])
    return markdown.table(BROKEN, rows)


def searched(lines: Lines) -> str:
    """A text on the results of the search."""
    if SEARCH.name not in lines:
        return ""
    found = lines[SEARCH.name]["found"]
    most, tried = max(each["needed"] for each in found), sum(each["tried"] for each in found)
    return f"{tried:,} quadratics; the worst needed {most:.2f} times the Z_2 that is printed"


def blocks(lines: Lines) -> Mapping[str, str]:
    rows = (row(run, lines.get(run.name)) for run in GRID)
    return {"table": markdown.table(HEADS, rows), "broken": broken(lines), "searched": searched(lines)}


def picture(lines: Lines, path: Path) -> None:
    from experiments.theorem import theorem_picture

    theorem_picture.draw(lines, KS, BETAS, [FILLING.name, FALLS.name], path)


TABLE = Table("theorem1", (*GRID, FILLING, FALLS, FALLS_ALWAYS, SEARCH), blocks, picture, measure=measure)

if __name__ == "__main__":
    sys.exit(main(TABLE))
