"""ResNet-20 on CIFAR-10 with BP and FDG, K = 2, 3, 4 and beta = 1, 0.5, for as many epochs as a CPU allows.

This is not a table of the paper. It has 5 of the paper's 300 epochs, so its numbers only compare these runs with one
another.
"""

import sys
from pathlib import Path
from typing import Any

from experiments.harness import markdown, pictures
from experiments.harness.run_table import Lines, Run, Table
from experiments.harness.table_command import main

SHARED = {
    "dataset": "cifar10", "model": "resnet20", "epochs": 5, "batch_size": 128, "seed": 0, "engine": "delay-line",
}  # fmt: skip
RUNS = (
    Run("bp", {**SHARED, "method": "bp", "K": 1}),
    *(
        Run(f"fdg-K{K}-beta{beta:g}", {**SHARED, "method": "fdg", "K": K, "beta": beta})
        for K in (2, 3, 4)
        for beta in (1.0, 0.5)
    ),
)
# From Table 3 of the paper, row ResNet-20: 300 epochs, median of 3 runs.
PAPER = {"bp": "7.78 (8.75 as first published)", "fdg-K2-beta1": "7.92"}
HEADS = (
    "method", "K", "beta", "staleness of stages 1..K (updates)", "test error %", "minus BP", "train loss", "images/s",
    "n", "paper's Table 3, 300 epochs: test error %", "command",
)  # fmt: skip
COLOURS = {1: "#333333", 2: "#0072b2", 3: "#d55e00", 4: "#009e73"}  # distinct for colour-blind readers, too
STYLES = {1.0: ("-", "o"), 0.5: ((0, (5, 2)), "s")}


def measured(lines: Lines, name: str) -> list[str]:
    """Cells of a row: test error, its difference to BP's, training loss, images per second. Blank without a result."""
    if name not in lines:
        return [""] * 4
    line, bp = lines[name], lines.get("bp")
    error = line["test_error_percent"]
    minus = f"{error - bp['test_error_percent']:+.2f}" if bp and name != "bp" else ""
    return [f"{error:.2f}", minus, f"{line['train_loss']:.4f}", f"{line['images_per_second']:.0f}"]


def row(run: Run, lines: Lines) -> list[str]:
    flags, line = run.flags, lines.get(run.name)
    head = [flags["method"].upper(), str(flags["K"]), f"{flags['beta']:g}" if "beta" in flags else "–"]
    late = ", ".join(map(str, line["staleness"])) if line else ""
    return [*head, late, *measured(lines, run.name), "1" if line else "", PAPER.get(run.name, ""), run.cell()]


def curve(run: Run, line: Any) -> pictures.Curve:
    style, marker = STYLES[run.flags.get("beta", 1.0)]
    label = "BP" if run.flags["method"] == "bp" else f"FDG K={run.flags['K']}, β={run.flags['beta']:g}"
    label += f": {line['test_error_percent']:.2f}%"
    return pictures.Curve(label, COLOURS[run.flags["K"]], style, marker, line)


def picture(lines: Lines, path: Path) -> None:
    curves = [curve(run, lines[run.name]) for run in RUNS if run.name in lines]
    title = "ResNet-20 on CIFAR-10, 5 epochs, one seed (beside the names: the last test error)"
    pictures.curves(path, title, "epoch (391 batches of up to 128 images each)", curves)


TABLE = Table(
    "cifar10_short", RUNS, lambda lines: {"table": markdown.table(HEADS, (row(run, lines) for run in RUNS))}, picture
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
