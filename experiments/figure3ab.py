"""Figures 3(a) and (b): learning curves of WRN-28-10 on CIFAR-10 by BP, DDG, FR, DGL and FDG with K = 2, 3 and 4.

The pictures are not in the paper's source. The paper's text concludes from the pictures that DGL and FDG are faster, so
one picture must have time on its axis. This figure has training loss and test error, over epochs and over hours. The
runs are those of Table 6.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import table6
from experiments.harness import paper, pictures, printed
from experiments.harness.run_table import Lines
from experiments.harness.table_command import main

# DDG with K = 2 is not drawn: it is the same training as FDG with beta = 1.
CELLS = tuple(cell for cell in table6.CELLS if cell.network == "WRN-28-10" and paper.trained(cell) == cell)
COLOURS = {"BP": "#333333", "DDG": "#e69f00", "DGL": "#009e73", "FR": "#cc79a7", "FDG": "#0072b2"}
STYLES: dict[int, Any] = {1: "-", 2: "-", 3: (0, (5, 2)), 4: (0, (1, 1.5))}


def curve(cell: printed.Cell, line: Mapping[str, Any]) -> pictures.Curve:
    """The curve of a run. Only FDG with the paper's best beta has dots."""
    shrunk = cell.beta is not None and cell.beta < 1
    label = "BP" if cell.method == "BP" else f"{cell.method} K={cell.K}{f', beta={cell.beta:g}' if cell.beta else ''}"
    label += f": {line['test_error_percent']:.2f}%"
    return pictures.Curve(label, COLOURS[cell.method], STYLES[cell.K], "o" if shrunk else "", line)


def draw(cells: Sequence[printed.Cell], epochs: int, lines: Lines, path: Path) -> None:
    found = [(cell, paper.median_line(cell, lines)) for cell in cells]
    curves = [curve(cell, line) for cell, line in found if line]
    title = f"WRN-28-10 on CIFAR-10, {epochs} epochs; of each the median run, beside its name the last test error"
    pictures.curves(path, title, "epoch", curves, long=True)


TABLE = paper.table(paper.Plan("figure3ab", CELLS, draws=draw))

if __name__ == "__main__":
    sys.exit(main(TABLE))
