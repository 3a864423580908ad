"""ResNet-20 on CIFAR-10 by every method but the control scaled_bp, K = 2 and 4, for one epoch.

It is not a table of the paper. Its numbers only compare methods with one another, on the same batches and with one
recipe.
"""

import sys
from pathlib import Path
from typing import Any

from experiments.harness import markdown, pictures
from experiments.harness.intervals import minus_bp, of_one_seed
from experiments.harness.run_table import Lines, Run, Table
from experiments.harness.table_command import main

NAME, EPOCHS = "methods_short", 1
SHARED = {"dataset": "cifar10", "model": "resnet20", "epochs": EPOCHS, "batch_size": 128, "seed": 0}

# What a row is called: the flags that make it. The paper's five come first, then what the repository adds.
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


LABELS = {name(flags, K): (label, K) for K in (2, 4) for label, flags in ROWS.items()}
RUNS = (
    Run("bp", {**SHARED, "method": "bp", "K": 1}),
    *(Run(name(flags, K), {**SHARED, "K": K, **flags}) for K in (2, 4) for flags in ROWS.values()),
)
LABELS["bp"] = ("BP", 1)

HEADS = (
    "method", "K", "test error %", "train loss", "images/s", "staleness of stages 1..K (updates)", "parameters",
    "auxiliary parameters", "batches", "n", "command",
)  # fmt: skip

# The order that the paper reports: FDG with shrinking at least as good as FDG, DDG and DGL. It has no errors of DNI.
BEST, OTHERS = "FDG, beta = 0.5", ("FDG", "DDG", "DGL")

WORDS = (
    f"**Scaled:** {EPOCHS} epoch instead of the paper's 300, one seed (n = 1) instead of the median of three. The "
    "learning rate, 0.1, is divided by 10 at 50%, 75% and 91.67% of the run; with K = 4, for methods whose training "
    "depends on K, it is 0.01 for the first 1% of the batches (the paper: 3 of 300 epochs). The rest is the paper's.",
    "**Sizes that differ from the methods' papers:** linear heads see 128 numbers, and synthesizers model the gradient "
    "of an example's own loss; with 2048 numbers and the batch's mean gradient both diverge at this rate. BatchNorm "
    "sees 32 images with GPipe, and 128 / K with data parallel's local statistics.",
    "**How we read the papers:** the network is cut where the authors cut it for K = 2, and by equal cost for K = 4, "
    "where they do not. FR trains all modules at the same rate. DNI is conditional; its stages are trained by SGD at "
    "0.1 like all others. DGL's code trains DNI by Adam at 3e-5 and says that SGD does not converge, so this row says "
    "little about DNI. The training loss is the mean over the epoch; where stages have losses of their own it is stage "
    "K's. For K = 2 FDG and DDG are the same training (stage 1's gradient is one update old in both) and differ in "
    "time only. Images/s is what a run logged on one core while other programs used the machine: "
    "`benchmarks.images_per_second` compares speeds.",
)


def row(run: Run, line: Any) -> list[str]:
    label, K = LABELS[run.name]
    if line is None:
        return [label, str(K), *[""] * 9]
    return [
        label,
        str(K),
        f"{line['test_error_percent']:.2f}",
        f"{line['train_loss']:.4f}",
        f"{line['images_per_second']:.0f}",
        ", ".join(map(str, line["staleness"])),
        f"{line['parameters']:,}",
        f"{line['auxiliary_parameters']:,}",
        str(line["steps"]),
        "1",
        f"`{line['command']}`",
    ]


def verdict(lines: Lines, K: int) -> str:
    """Whether the finished results have the order that the paper reports."""
    errors = {LABELS[run][0]: line["test_error_percent"] for run, line in lines.items() if LABELS[run][1] == K}
    ranked = sorted(errors, key=lambda label: errors[label])
    sentences = [f"**K = {K}**, best first: " + ", ".join(f"{label} ({errors[label]:.2f}%)" for label in ranked) + "."]
    others = [other for other in OTHERS if not (K == 2 and other == "DDG")]  # which is FDG's training then
    known = [other for other in others if BEST in errors and other in errors]
    against = [f"{other} is ahead of {BEST}" for other in known if errors[other] < errors[BEST]]
    if not known:
        return ""
    share = f"{len(known) - len(against)} of the {len(known)} comparisons that the paper makes"
    sentences.append(f"Of one seed, {share} come out as there" + (f"; {', '.join(against)}." if against else "."))
    return " ".join(sentences)


def how_far(lines: Lines) -> str:
    """How far the differences to BP carry."""
    errors = {name: line["test_error_percent"] for name, line in lines.items()}
    return of_one_seed(minus_bp(errors, lambda name: "{} K={}".format(*LABELS[name])), "BP")


def document(lines: Lines) -> str:
    """The table, whether it has the paper's order, the conditions of the runs, and the limits of the numbers."""
    finished = f"{len(lines)} of {len(RUNS)} runs are finished; the others' cells are blank."
    parts = [
        markdown.table(HEADS, (row(run, lines.get(run.name)) for run in RUNS)),
        finished if len(lines) < len(RUNS) else "",
        how_far(lines),
        f"![Test error of every method]({NAME}.png)",
        f"**The paper's order** (after 300 epochs): {BEST} at least as good as {', '.join(OTHERS)}. It has no "
        "errors of DNI. With n = 1 small differences mean nothing.",
        *[verdict(lines, K) for K in (2, 4)],
        markdown.origin(lines),
        *WORDS,
    ]
    return "\n\n".join(part for part in parts if part)


def picture(lines: Lines, path: Path) -> None:
    groups = {
        f"K = {K}": {LABELS[run][0]: [line["test_error_percent"]] for run, line in lines.items() if LABELS[run][1] == K}
        for K in (2, 4)
    }
    title = f"ResNet-20 on CIFAR-10 by every method, {EPOCHS} epoch, one seed"
    reference = ("BP", lines["bp"]["test_error_percent"]) if "bp" in lines else None
    pictures.bars(path, title, pictures.TEST_ERROR, groups, reference)


TABLE = Table(
    name=NAME,
    summary=f"ResNet-20 on CIFAR-10, {EPOCHS} epoch: every method, K = 2 and 4",
    title=f"ResNet-20 on CIFAR-10 in {EPOCHS} epoch by every method",
    runs=RUNS,
    document=document,
    picture=picture,
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
