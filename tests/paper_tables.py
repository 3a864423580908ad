"""The tables of the paper, and their runs by name."""

import experiments
from experiments.harness.run_table import Run

ERRORS = ["table3", "table4", "table5", "table6", "appendix_a", "figure3c"]  # whose pages have rows of test errors
NAMES = [*ERRORS, "figure3ab"]
RUNS = {run.name: run for name in NAMES for run in experiments.find(name).runs}
PAPER, OURS, N, COMMAND = 4, 5, 6, 7  # columns


def run_of(name: str) -> Run:
    return RUNS[name]
