"""The short table, and its runs by name."""

from experiments import cifar10_short
from experiments.harness import run_table
from experiments.harness.run_table import Run

TABLE, ROOT = cifar10_short.TABLE, run_table.ROOT
NAMES = [
    "bp", "fdg-K2-beta1", "fdg-K2-beta0.5", "fdg-K3-beta1", "fdg-K3-beta0.5", "fdg-K4-beta1", "fdg-K4-beta0.5"
]  # fmt: skip


def run_of(name: str) -> Run:
    return next(run for run in TABLE.runs if run.name == name)
