"""Appendix A: FDG with the forward or the backward pass first, ResNet-20 and ResNet-56 on CIFAR-10, K = 2."""

import sys

from experiments.harness import paper, printed
from experiments.harness.table_command import main

# Rows and columns as printed (\label{table_appendix1}); the notation is that of table3.py.
CELLS = printed.read(
    """
    network   | parameters | FDG-forward       | FDG-backward
    ResNet-20 | 0.27M      | 8.03(1)/7.57(0.2) | 7.92(1)/7.23(0.2)
    ResNet-56 | 0.46M      | 6.20(1)/5.94(0.5) | 6.20(1)/5.90(0.5)
    """,
    "cifar10",
)
NOTES = {("ResNet-56",): "[1]"}
TABLE = paper.table(paper.Plan("appendix_a", CELLS, NOTES))

if __name__ == "__main__":
    sys.exit(main(TABLE))
