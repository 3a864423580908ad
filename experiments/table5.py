"""Table 5: test errors on Tiny-ImageNet, K = 2, of BP and FDG for ResNet-18 and MobileNet v2."""

import sys

from experiments.harness import paper, printed
from experiments.harness.table_command import main

# Rows and columns as printed (\label{table_tiny}); the notation is that of table3.py.
CELLS = printed.read(
    """
    network      | parameters | BP     | FDG
    ResNet-18    | 11.2M      | 38.32* | 38.58(1)/38.22(0.5)
    MobileNet v2 | 3.40M      | 46.35* | 46.36(1)/46.44(0.3)
    """,
    "tiny_imagenet",
)
NOTES = {("MobileNet v2",): "[1]", ("MobileNet v2", "FDG", 2, 0.3): "[2]"}
TABLE = paper.table(paper.Plan("table5", CELLS, NOTES))

if __name__ == "__main__":
    sys.exit(main(TABLE))
