"""Where this reading of the paper differs from the authors' code, and what each difference changes. Registered.

Every arm changes one thing against FDG with β = 0.3 in the runs of 20 epochs of `decisive` (ResNet-8 on CIFAR-10
averaged to 16x16, K = 4), whose first three seeds are the base. Both tables keep their runs in one place.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments import decisive
from experiments.decision.rules import SHRUNK
from experiments.decisive import errors_by_seed
from experiments.harness import markdown
from experiments.harness.intervals import QUANTILES, Interval, by_seed_paragraph, carries, interval, paired
from experiments.harness.run_table import Lines, Run, Table, command, shown
from experiments.harness.table_command import main

PART, SEEDS = decisive.PARTS[0], (0, 1, 2)
BASE = {seed: PART.run(SHRUNK, seed) for seed in SEEDS}
IMAGES, PAPER_EPOCHS = 50_000, 300


class Difference(NamedTuple):
    """One difference, as its row has it.

    what: in one or two words.
    theirs: what the authors' code does; the files are those of ZHUANGHP/FDG unless it says otherwise.
    ours: what this package does.
    changed: the options in which the arm differs from the base; empty if there is no arm. `engine` is no difference
        of its own (see WORDS).
    note: how the arm is to be read, or why there is none.
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
        "PyTorch's default for convolutions, uniform in ±1/√(fan-in); a line with He's is commented out "
        "(`ResNet_cifar.py`)",
        "He's normal distribution over the fan-out: for as many features as channels √6 times that deviation",
        {"model": "resnet8_fdg_init"},
    ),
    "current": Difference(
        "weights of the late backward pass",
        "current: old activations, the newest weights, since `step` changes the weights in place (`DG_models.py`)",
        "stashed: those of the batch's forward pass (Eq. 10)",
        {"weights": "current", **PIPELINE},
    ),
    "forward-first": Difference(
        "order in an iteration",
        "backward first (`FDG.py`; mode B of the later repository, its default); its mode A is forward first",
        "backward first: no difference",
        {"order": "forward-first"},
        "Measured since Figure 1 and the theorem of the paper are forward first.",
    ),
    "no-drain": Difference(
        "last gradients in flight",
        "dropped when the run ends (`FDG.py`)",
        "used: every batch updates every stage once",
        {"drain": False},
        "The same training as the base: 5, 3, 1 and 0 gradients of stages 1 to 4 are not used in the end.",
    ),
    "in-flight": Difference(
        "statistics in flight",
        "the network is tested between two iterations: after iteration t stage k has the running statistics of the "
        "batches up to t-k+1 and has used the gradients of those up to t-2K+k+1, stage K of one less (`FDG.py`). With "
        "K = 4: statistics up to t, t-1, t-2 and t-3, gradients up to t-6, t-5, t-4 and t-4",
        "`--engine pipeline` tests at that moment, too, with stage K's newest gradient used; with `--engine "
        "delay-line` all stages have the statistics of the newest batch. The last test, whose error counts, is made "
        "after draining: all stages have the statistics of the last batch, and all gradients are used",
        {"drain": False, **PIPELINE},
        "The same training as the base, tested as it stands after its last iteration: gradients in flight are unused.",
    ),
    "full-batches": Difference(
        "dropped last batch",
        "an epoch's last batch, 80 images, is kept: `DataLoader` without `drop_last` (`DG_datasets.py`)",
        "kept: no difference",
        {"train_size": IMAGES - IMAGES % decisive.BATCH},
        "As if it were dropped, with the same 80 images left out in all epochs; the order of the images is another.",
    ),
    "pool": Difference(
        "pooling",
        "`AvgPool2d(6)`: the top left 6x6 of the 8x8 map of 32x32 images, the rest is not seen (`ResNet_cifar.py`)",
        "the mean of the whole map",
        {"model": "resnet8_fdg_pool"},
        "A window of 6 does not fit the 4x4 map of 16x16 images: the top left 3x3, which is the same share of the map.",
    ),
}  # fmt: skip
SAME = "no-drain"  # trains as the base does, but for the last updates
WITHOUT_ARM = (
    Difference(
        "scale of the inputs",
        "CIFAR-10's are divided by 0.2023, 0.1994, 0.2010 (`DG_datasets.py`)",
        "by the deviations of the pixels, as in the authors' later repository (`datasets.py`)",
        note="No arm: the first batch norm undoes a common factor; it acts as a higher learning rate of the first "
        "convolution alone.",
    ),
    Difference(
        "learning rate",
        "drops one epoch late; the warm-up of 3 epochs ends after one, as the scheduler resets it (`FDG.py`)",
        "drops and warm-up as printed",
        note=f"No arm: an epoch of the paper's {PAPER_EPOCHS} is {PART.updates / PAPER_EPOCHS:.0f} of the "
        f"{PART.updates:,} batches here.",
    ),
    Difference(
        "first update of stage K",
        "withheld and then made with two gradients, in mode A of the later repository (`main.py`)",
        "every batch makes an update",
        note=f"No arm: it is one update of {PART.updates:,}, and their default is mode B.",
    ),
    Difference(
        "bias of the last layer",
        "starts within ±1/√(fan-in) (PyTorch's default)",
        "starts at 0",
        note="No arm: it is one number for each class, and its gradient comes without delay.",
    ),
    Difference(
        "running variance",
        "averages the unbiased variances of the batches (PyTorch)",
        "averages the biased ones",
        note="No arm: training normalises by the biased ones in both, and they are smaller by "
        f"1/{IMAGES % decisive.BATCH * 4 * 4:,} at most (the last batch, 4x4 maps).",
    ),
)


def run_of(arm: str, seed: int) -> Run:
    name = f"{PART.model}-{SHRUNK}-{PART.epochs}-epochs-{arm}-seed{seed}"
    return Run(name, {**BASE[seed].flags, **ARMS[arm].changed})


# Seed by seed, so that whatever is finished is balanced.
RUNS = tuple(run for seed in SEEDS for run in (BASE[seed], *(run_of(arm, seed) for arm in ARMS)))

HEADS = (
    "difference", "the authors' code", "ours", "n", "test error %, mean",
    "minus the base, by seed: mean (95% interval)", "larger than the seeds' spread", "effect", "remark",
    "command of the arm",
)  # fmt: skip

# What is said here of options is checked against the runs and the results by a test.
WORDS = (
    "**The base** is FDG with K = 4 and β = 0.3, 20 epochs of [decisive](decisive.md), which has the network, the data "
    "and the recipe: backward first, stashed weights, drained, one device (`--engine delay-line`), the error after the "
    "last epoch. An arm changes one option of it. First weights, batches and augmentation are those of the base with "
    "the same seed, but for the arm of initialisation, which draws other weights, and that of the dropped batch, which "
    "has the images in another order.",
    "**The engine is no difference.** `--weights current` and a test with batches in flight need `--engine pipeline`. "
    "With everything else equal both engines agree bit for bit on one core of a CPU (tested).",
    "**Other networks and methods** differ, too (WRN-28-10, MobileNet, DDG, FR, DNI): "
    "[how this project reads the paper](../../docs/reading-the-paper.md) has them.",
    markdown.REPEAT,
)
EXPECTED_DEVIATIONS = (0.3, 0.4)  # points, of differences by seed (decisive.md)
REACH = " to ".join(f"{QUANTILES[len(SEEDS) - 1] * one / math.sqrt(len(SEEDS)):.1f}" for one in EXPECTED_DEVIATIONS)


def by_chance(arms: int) -> str:
    """How probable it is that one or more of so many arms without effect seem to have one."""
    return f"{1 - 0.95**arms:.0%}"


REGISTERED = (
    "**What counts, fixed before the first run of an arm.** The errors of an arm minus those of the base, by seed, "
    f"n = {len(SEEDS)}. A difference *has an effect* if their 95% interval (Student's) excludes 0. Otherwise *none is "
    "shown*, which does not say that there is none: such differences are expected to have a standard deviation of "
    f"{EXPECTED_DEVIATIONS[0]} to {EXPECTED_DEVIATIONS[1]} points, so intervals reach {REACH} points to either side: "
    f"an effect is one of {QUANTILES[len(SEEDS) - 1] / math.sqrt(len(SEEDS)):.1f} such deviations or more. "
    "With fewer seeds nothing is said. All rows stay, and no run is made again because of its result. If none of the "
    f"{len(ARMS)} arms had an effect, one or more would still seem to have one with a probability of "
    f"{by_chance(len(ARMS))} (taken as independent)."
)


def of_arm(lines: Lines, arm: str) -> dict[int, float]:
    return errors_by_seed(lines, {seed: run_of(arm, seed) for seed in SEEDS})


def effect(lines: Lines, arm: str, instead: str = "") -> Interval | None:
    """An arm's errors minus those of the base, or of another arm instead, by seed."""
    base = of_arm(lines, instead) if instead else errors_by_seed(lines, BASE)
    return interval(list(paired(of_arm(lines, arm), base).values()))


def has_effect(found: Interval | None) -> str:
    """The registered rule in words: "yes", "none shown", or "" with fewer seeds than registered."""
    if found is None or found.n < len(SEEDS):
        return ""
    return "none shown" if found.low <= 0 <= found.high else "yes"


def mean_of(found: dict[int, float]) -> list[str]:
    """The cells of n and the mean error."""
    mean = interval(list(found.values()))
    return ["", ""] if mean is None else [str(mean.n), f"{mean.mean:.2f}"]


def repeated(run: Run) -> str:
    return f"`{shown(command(run, None, None)).replace('--seed 0', '--seed S')}`"


def row(lines: Lines, arm: str) -> list[str]:
    one, found = ARMS[arm], effect(lines, arm)
    beyond = found and found.deviation is not None and ("yes" if abs(found.mean) > found.deviation else "no")
    cells = [str(found) if found else "", beyond or "", has_effect(found)]
    return [one.what, one.theirs, one.ours, *mean_of(of_arm(lines, arm)), *cells, one.note, repeated(run_of(arm, 0))]


def rows(lines: Lines) -> list[list[str]]:
    base = ["the base", "", "", *mean_of(errors_by_seed(lines, BASE)), "", "", "", "", repeated(BASE[0])]
    without = [[one.what, one.theirs, one.ours, *[""] * 5, one.note, ""] for one in WITHOUT_ARM]
    return [base, *(row(lines, arm) for arm in ARMS), *without]


def rounding(lines: Lines) -> str:
    """What other machines change, of which the arm that trains as the base does is the measure. "" if nothing."""
    seeds = errors_by_seed(lines, BASE).keys() & of_arm(lines, SAME).keys()
    both = [(lines[BASE[seed].name], lines[run_of(SAME, seed).name]) for seed in seeds]
    parted = sum(a["training_curve"]["train_loss"] != b["training_curve"]["train_loss"] for a, b in both)
    if not parted:
        return ""
    others = [(arm, effect(lines, arm, instead=SAME)) for arm in ARMS if arm != SAME]
    said = "; ".join(f"`{arm}` {found}" for arm, found in others if found)
    return (
        f"**Rounding is in these differences.** `{SAME}` trains as the base does until the last updates of a run, so "
        f"on one machine and with one version of this package both have the same training curve. Of {len(both)} seeds "
        f"it is another one for {parted}: the base and the arms were not all trained in one place, sums were "
        f"rounded in another order, and from there the runs part. `{SAME}` minus the base, {effect(lines, SAME)}, is "
        "what this alone changes, and every other row has as much of it.\n\n"
        f"**Against `{SAME}` instead of the base**, looked at afterwards and so no registered result: most arms were "
        f"trained where `{SAME}` was. By seed, in percentage points: {said}. One or "
        f"more of {len(ARMS) - 1} arms without effect would leave out 0 with a probability of "
        f"{by_chance(len(ARMS) - 1)}."
    )


def document(lines: Lines) -> str:
    """What counts, the table, and what it was made with."""
    said = [carries(f"{one.what} (`{arm}`)", effect(lines, arm)) for arm, one in ARMS.items()]
    runs = {
        f"The base, {PART.epochs} epochs": tuple(BASE.values()),
        f"the {len(ARMS)} arms, {PART.epochs} epochs": tuple(run_of(arm, seed) for seed in SEEDS for arm in ARMS),
    }
    parts = [
        markdown.progress(lines, runs),
        "**The question.** Where does this package differ from the authors' code for the ResNets of CIFAR-10, and what "
        "does each difference change in short runs? Files named here are those of the authors' repository "
        "ZHUANGHP/FDG; their later one is ZHUANGHP/Accumulated-Decoupled-Learning.",
        REGISTERED,
        markdown.table(HEADS, rows(lines)),
        "S is the seed.",
        by_seed_paragraph(said),
        rounding(lines),
        markdown.origin(lines),
        *WORDS,
    ]
    return "\n\n".join(part for part in parts if part)


TABLE = Table(
    name="differences",
    summary="registered: what each difference from the authors' code changes in 20 epochs of ResNet-8, K = 4",
    title="Where this reading differs from the authors' code, and what that changes",
    runs=RUNS,
    document=document,
    shares=decisive.TABLE.home,
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
