"""Table 4: test errors on CIFAR-100, K = 2, of BP, DDG, DGL, FR and FDG for four networks."""

import sys

from experiments.harness import paper, printed
from experiments.harness.table_command import main
from experiments.table3 import NOTES as OF_TABLE_3

# As printed, rows and columns (\label{table_cifa100}); the notation is that of table3.py.
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
NOTES = {
    ("ResNet-56",): OF_TABLE_3[("ResNet-56",)],
    ("ResNet-56", "FDG", 2, 0.4): "The README of the authors' code has 27.70 with beta = 0.8 as the best.",
}
PLAN = paper.Plan("table4", "Table 4: CIFAR-100, K = 2, five methods, four networks", CELLS, NOTES)
TABLE = paper.table(PLAN)

if __name__ == "__main__":
    sys.exit(main(TABLE))
