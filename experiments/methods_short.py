"""ResNet-20 on CIFAR-10 by every method except the control scaled_bp, K = 2 and 4, for one epoch.

This is not a table of the paper. Its numbers only compare methods with one another, on the same batches and with the
same recipe.
"""

import sys
from pathlib import Path
from typing import Any

from experiments.cifar10_short import measured
from experiments.harness import markdown, pictures
from experiments.harness.run_table import Lines, Run, Table
from experiments.harness.table_command import main

SHARED = {"dataset": "cifar10", "model": "resnet20", "epochs": 1, "batch_size": 128, "seed": 0}

# Row -> its flags. The paper's five methods come first, then those that the repository adds.
ROWS: dict[str, dict[str, Any]] = {
    "FDG, beta = 0.5": {"method": "fdg", "beta": 0.5},
    "FDG": {"method": "fdg"},
    "DDG": {"method": "ddg"},
    "FR": {"method": "fr"},
    "replay": {"method": "replay"},
    "DGL": {"method": "dgl"},
    "DNI": {"method": "dni"},
    "ADL, M = 2": {"method": "fdg", "accumulate": 2},
    "local classifiers": {"method": "dgl", "aux": "linear"},
    "local classifiers and similarity": {"method": "dgl", "aux": "predsim"},
    "FA": {"method": "fa"},
    "DFA": {"method": "dfa"},
    "GPipe, M = 4": {"method": "gpipe"},
    "data parallel": {"method": "data_parallel"},
    "data parallel, sync BatchNorm": {"method": "data_parallel", "batch_norm": "sync"},
}


def name(flags: dict[str, Any], K: int) -> str:
    rest = [f"{key.replace('_', '-')}-{value}" for key, value in flags.items() if key != "method"]
    return "-".join([flags["method"], f"K{K}", *rest])


LABELS = {name(flags, K): (label, K) for K in (2, 4) for label, flags in ROWS.items()} | {"bp": ("BP", 1)}
RUNS = (
    Run("bp", {**SHARED, "method": "bp", "K": 1}),
    *(Run(name(flags, K), {**SHARED, "K": K, **flags}) for K in (2, 4) for flags in ROWS.values()),
)
HEADS = (
    "method", "K", "test error %", "minus BP", "train loss", "images/s", "staleness of stages 1..K (updates)",
    "parameters", "auxiliary parameters", "batches", "n", "command",
)  # fmt: skip


def row(run: Run, lines: Lines) -> list[str]:
    (label, K), line = LABELS[run.name], lines.get(run.name)
    counted = [""] * 5
    if line:
        late, sizes = ", ".join(map(str, line["staleness"])), (line["parameters"], line["auxiliary_parameters"])
        counted = [late, *(f"{size:,}" for size in sizes), str(line["steps"]), "1"]
    return [label, str(K), *measured(lines, run.name), *counted, run.cell()]


def picture(lines: Lines, path: Path) -> None:
    groups = {
        f"K = {K}": {LABELS[run][0]: [line["test_error_percent"]] for run, line in lines.items() if LABELS[run][1] == K}
        for K in (2, 4)
    }
    title = "ResNet-20 on CIFAR-10 by every method, 1 epoch, one seed"
    reference = ("BP", lines["bp"]["test_error_percent"]) if "bp" in lines else None
    pictures.bars(path, title, pictures.TEST_ERROR, groups, reference)


TABLE = Table(
    "methods_short", RUNS, lambda lines: {"table": markdown.table(HEADS, (row(run, lines) for run in RUNS))}, picture
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
