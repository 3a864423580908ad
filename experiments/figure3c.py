"""Figure 3(c): the test error of ResNet-20 on CIFAR-10, trained by FDG with K = 2 and various beta, as bars.

The picture is not in the paper's source. Only the bars whose numbers Table 3 prints are known.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import table3
from experiments.harness import paper, pictures, printed
from experiments.harness.run_table import Lines
from experiments.harness.table_command import main

BETAS = tuple(tenth / 10 for tenth in range(1, 11))
KNOWN = {(cell.method, cell.beta): cell for cell in table3.CELLS if cell.network == "ResNet-20"}
CELLS = (
    KNOWN["BP", None],
    *(KNOWN.get(("FDG", b), printed.Cell("ResNet-20", "cifar10", "FDG", 2, b, "", parameters="0.27M")) for b in BETAS),
)


def draw(cells: Sequence[printed.Cell], epochs: int, lines: Lines, path: Path) -> None:
    found = [[*paper.errors(cell, lines).by_seed.values()] for cell in cells]
    series: dict[str, list[float | None]] = {
        "paper (300 epochs)": [float(cell.error.rstrip("*")) if cell.error else None for cell in cells],
        f"ours ({epochs} epochs)": [statistics.median(errors) if errors else None for errors in found],
    }
    labels = ["BP" if cell.beta is None else f"{cell.beta:g}" for cell in cells]
    title = "ResNet-20 on CIFAR-10: BP, and FDG with K = 2 by beta (the axis does not start at zero)"
    pictures.bars_beside(path, title, "beta", labels, series)


TABLE = paper.table(paper.Plan("figure3c", CELLS, draws=draw))

if __name__ == "__main__":
    sys.exit(main(TABLE))
