"""Table 6: test errors on CIFAR-10 with K = 2, 3 and 4 stages, of all methods, for ResNet-56 and WRN-28-10."""

import sys

from experiments.harness import paper, printed
from experiments.harness.table_command import main

# Rows and columns as printed (\label{table_many_modules}); the notation is that of table3.py. BP is printed with every
# K, always with the same numbers.
CELLS = printed.read(
    """
    network   | K | BP   | DDG   | DGL   | FR    | FDG
    ResNet-56 | 2 | 6.19 | 6.60* | 6.77* | 6.07* | 6.20(1)/5.90(0.5)
    ResNet-56 | 3 | 6.19 | 6.50* | 8.88* | 6.33* | 6.40(1)/6.08(0.2)
    ResNet-56 | 4 | 6.19 | 6.61* | 9.65* | 6.48* | 6.83(1)/6.14(0.3)
    WRN-28-10 | 2 | 4.01 | 4.05* | 4.12* | 3.87* | 4.13(1)/3.85(0.7)
    WRN-28-10 | 3 | 4.01 | 4.12* | 4.91* | 6.16* | 4.19(1)/4.07(0.5)
    WRN-28-10 | 4 | 4.01 | 6.61* | 5.64* | 5.39* | 6.50(1)/4.42(0.5)
    """,
    "cifar10",
)
NOTES = {
    ("ResNet-56", "FDG", 3, 1.0): "[1]", ("ResNet-56", "DDG", 4, None): "[2]", ("WRN-28-10", "DDG", 4, None): "[2]",
    ("ResNet-56", "FDG", 4, 0.3): "[3]", ("WRN-28-10", "FR", 3, None): "[4]", ("WRN-28-10", "FDG", 4, 0.5): "[5]",
}  # fmt: skip
TABLE = paper.table(paper.Plan("table6", CELLS, NOTES))

if __name__ == "__main__":
    sys.exit(main(TABLE))
