"""The differences between this package and the authors' code, and the effect of each. Registered.

The base is the first three seeds of FDG with β = 0.3 in the table `decisive`: 20 epochs of ResNet-8 on CIFAR-10
averaged to 16x16, K = 4. Every arm changes one thing. This table and `decisive` keep their runs in one place.
"""

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments import decisive
from experiments.decision.rules import SHRUNK
from experiments.harness import markdown
from experiments.harness.intervals import Seeds, of_runs
from experiments.harness.run_table import Lines, Run, Table
from experiments.harness.table_command import main

PART, SEEDS = decisive.PARTS[0], (0, 1, 2)
BASE = {seed: PART.run(SHRUNK, seed) for seed in SEEDS}
IMAGES = 50_000


class Difference(NamedTuple):
    """One difference: a row of the table.

    what: a name of one or two words.
    theirs: the behaviour of the authors' code; files are those of ZHUANGHP/FDG unless another source is named.
    ours: the behaviour of this package.
    changed: the options in which the arm differs from the base; empty if there is no arm. A difference in `engine`
        alone does not count (see WORDS).
    note: how to read the arm's result, or why there is no arm.
    """

    what: str
    theirs: str
    ours: str
    changed: Mapping[str, Any] = {}
    note: str = ""


PIPELINE = {"engine": "pipeline"}
ARMS = {
    "init": Difference(
        "initialisation",
        "PyTorch's default for convolutions, uniform in ±1/√(fan-in); He's initialisation is "
        "commented out (`ResNet_cifar.py`)",
        "He's normal distribution by fan-out. With as many output as input channels, its deviation is √6 times larger",
        {"model": "resnet8_fdg_init"},
    ),
    "current": Difference(
        "weights of the late backward pass",
        "current: activations are old, but weights are the newest, as `step` changes them in place (`DG_models.py`)",
        "stashed: those of the batch's forward pass (Eq. 10)",
        {"weights": "current", **PIPELINE},
    ),
    "forward-first": Difference(
        "order in an iteration",
        "backward first (`FDG.py`, and mode B, the default, of the later repository); mode A is forward first",
        "backward first: no difference",
        {"order": "forward-first"},
        "This was measured because Figure 1 and the theorem of the paper are forward first.",
    ),
    "no-drain": Difference(
        "last gradients in flight",
        "dropped when the run ends (`FDG.py`)",
        "used: every batch updates every stage once",
        {"drain": False},
        "The training is that of the base, but the last 5, 3, 1 and 0 gradients of stages 1 to 4 are not used.",
    ),
    "in-flight": Difference(
        "statistics in flight",
        "the network is tested between two iterations: after iteration t stage k has the running statistics of the "
        "batches up to t-k+1, and it has used the gradients up to batch t-2K+k+1 (stage K: t-K) (`FDG.py`). With K = 4 "
        "the statistics are up to t, t-1, t-2 and t-3, and the gradients up to t-6, t-5, t-4 and t-4",
        "`--engine pipeline` tests at the same moment, but stage K has used its newest gradient. With `--engine "
        "delay-line` all stages have the statistics of the newest batch. The last test, whose error counts, comes "
        "after draining: all stages have the statistics of the last batch and have used all gradients",
        {"drain": False, **PIPELINE},
        "The training is that of the base, but the test comes before the gradients in flight are used.",
    ),
    "full-batches": Difference(
        "dropped last batch",
        "an epoch's last batch of 80 images is kept: `DataLoader` without `drop_last` (`DG_datasets.py`)",
        "kept: no difference",
        {"train_size": IMAGES - IMAGES % decisive.BATCH},
        "This arm drops it: all epochs leave out the same 80 images, and the order of the others differs.",
    ),
    "pool": Difference(
        "pooling",
        "`AvgPool2d(6)`: the mean of the top left 6x6 of the 8x8 map, for 32x32 images (`ResNet_cifar.py`)",
        "the mean of the whole map",
        {"model": "resnet8_fdg_pool"},
        "The images here have 16x16 pixels and a 4x4 map, so the arm takes its top left 3x3, the same share.",
    ),
}  # fmt: skip
SAME = "no-drain"  # trains like the base, except for the last updates
WITHOUT_ARM = (
    Difference(
        "scale of the inputs",
        "CIFAR-10's are divided by 0.2023, 0.1994, 0.2010 (`DG_datasets.py`)",
        "by the deviations of the pixels, as in the authors' later repository (`datasets.py`)",
        note="No arm: the first batch norm undoes the factor, which then only acts as a higher learning rate of the "
        "first convolution.",
    ),
    Difference(
        "learning rate",
        "drops come one epoch late, and the scheduler ends the warm-up of 3 epochs after one (`FDG.py`)",
        "drops and warm-up are those of the paper",
        note="No arm: one of the paper's 300 epochs corresponds to 26 of the 7,820 batches here.",
    ),
    Difference(
        "first update of stage K",
        "in mode A of the later repository, it waits and then uses two gradients (`main.py`)",
        "every batch makes an update",
        note="No arm: this concerns one update of 7,820, and their default is mode B.",
    ),
    Difference(
        "bias of the last layer",
        "starts within ±1/√(fan-in) (PyTorch's default)",
        "starts at 0",
        note="No arm: the bias has one number for each class, and its gradient is not late.",
    ),
    Difference(
        "running variance",
        "mean of the unbiased variances of the batches (PyTorch)",
        "mean of the biased variances",
        note="No arm: in training, both normalise by the biased variances, which are smaller by 1/1,280 at most (the "
        "last batch, 4x4 maps).",
    ),
)


def run_of(arm: str, seed: int) -> Run:
    name = f"{PART.model}-{SHRUNK}-{PART.epochs}-epochs-{arm}-seed{seed}"
    return Run(name, {**BASE[seed].flags, **ARMS[arm].changed})


# Seed by seed, so that unfinished tables are balanced.
RUNS = tuple(run for seed in SEEDS for run in (BASE[seed], *(run_of(arm, seed) for arm in ARMS)))

HEADS = (
    "difference", "the authors' code", "ours", "n", "test error %, mean", "standard deviation", "by seed",
    "minus the base, by seed: mean (95% interval)", "effect", "minus `no-drain` instead", "remark",
    "command of the arm",
)  # fmt: skip


def seeds(lines: Lines, arm: str = "") -> Seeds:
    """The test errors in percent of an arm, or of the base."""
    return of_runs(lines, {seed: (run_of(arm, seed) if arm else BASE[seed]).name for seed in SEEDS})


def effect(lines: Lines, arm: str) -> str:
    """The result of the registered rule: "yes", "none shown", or "" with fewer seeds than registered."""
    found = seeds(lines, arm).minus(seeds(lines)).interval()
    if found is None or found.n < len(SEEDS):
        return ""
    return "none shown" if found.low <= 0 <= found.high else "yes"


def row(lines: Lines, arm: str) -> list[str]:
    one, found, marks = ARMS[arm], seeds(lines, arm), markdown.marks(lines)
    cells = found.cells(len(SEEDS), {seed: marks.get(run_of(arm, seed).name, "") for seed in SEEDS})
    instead = "" if arm == SAME else found.minus(seeds(lines, SAME)).told()
    minus = [found.minus(seeds(lines)).told(), effect(lines, arm), instead]
    what = f"{one.what} (`{arm}`)"
    return [what, one.theirs, one.ours, *cells, *minus, one.note, run_of(arm, 0).cell("S")]


def rows(lines: Lines) -> list[list[str]]:
    marks = markdown.marks(lines)
    cells = seeds(lines).cells(len(SEEDS), {seed: marks.get(run.name, "") for seed, run in BASE.items()})
    base = ["the base", "", "", *cells, *[""] * 4, BASE[0].cell("S")]
    without = [[one.what, one.theirs, one.ours, *[""] * 7, one.note, ""] for one in WITHOUT_ARM]
    return [base, *(row(lines, arm) for arm in ARMS), *without]


TABLE = Table(
    "differences", RUNS, lambda lines: {"table": markdown.table(HEADS, rows(lines))}, shares=decisive.TABLE.home
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
