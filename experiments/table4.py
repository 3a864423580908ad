"""Table 4: test errors on CIFAR-100, K = 2, of BP, DDG, DGL, FR and FDG for four networks."""

import sys

from experiments.harness import paper, printed
from experiments.harness.table_command import main

# Rows and columns as printed (\label{table_cifa100}); the notation is that of table3.py.
CELLS = printed.read(
    """
    network    | parameters | BP           | DDG          | DGL    | FR     | FDG
    ResNet-56  | 0.46M      | 30.21/27.68* | 29.83/28.44* | 29.51* | 28.39* | 27.87(1)/27.49(0.4)
    ResNet-110 | 1.70M      | 28.10/25.82* | 28.61/27.16* | 26.80* | 26.31* | 25.73(1)/25.43(0.5)
    ResNet-18  | 11.2M      | 22.35*       | 22.74*       | 22.24* | 22.88* | 22.78(1)/22.18(0.5)
    WRN-28-10  | 36.5M      | 19.2/19.6*   | -            | -      | -      | 20.28(1)/19.08(0.6)
    """,
    "cifar100",
)
NOTES = {("ResNet-56",): "[1]", ("ResNet-56", "FDG", 2, 0.4): "[2]"}
TABLE = paper.table(paper.Plan("table4", CELLS, NOTES))

if __name__ == "__main__":
    sys.exit(main(TABLE))
