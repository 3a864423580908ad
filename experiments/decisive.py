"""Does FDG catch up with BP as runs get longer, and does shrinking repair staleness? A registered experiment, K = 4.

ResNet-8 on CIFAR-10 averaged to 16x16 is small enough to run 5, 20 and 80 epochs with five seeds on two CPU cores.
decisive.md has the rules that were fixed before the first run; `decision/rules.py` computes the verdicts.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.decision import length_picture, rules
from experiments.decision.rules import BP, FROZEN, LONG, MIDDLE, SCALED, SHORT, SHRUNK, STALE
from experiments.harness import markdown
from experiments.harness.intervals import Seeds, of_runs
from experiments.harness.run_table import Lines, Run, Table
from experiments.harness.table_command import main

BATCH = 128
SHARED = {"batch_size": BATCH, "K": 4, "warmup": "on"}
SPLITS = {"resnet8": "1,2,3", "resnet20": "2,4,7"}  # the cuts of `balanced` at 16x16 and at 32x32
ARMS: dict[str, dict[str, Any]] = {
    BP: {"method": "bp", "engine": "delay-line"},
    STALE: {"method": "fdg", "beta": 1.0, "engine": "delay-line"},
    SHRUNK: {"method": "fdg", "beta": 0.3, "engine": "delay-line"},
    SCALED: {"method": "scaled_bp", "scale": 0.3, "engine": "pipeline"},
    FROZEN: {"method": "fdg", "beta": 0.001, "engine": "delay-line"},
}
LABELS = {
    BP: "BP",
    STALE: "FDG, β = 1",
    SHRUNK: "FDG, β = 0.3",
    SCALED: "BP shrunk by 0.3, no delay",
    FROZEN: "FDG, β = 0.001",
}


class Part(NamedTuple):
    """Runs of one network with one length. evaluate_every: in epochs; it does not change the training."""

    model: str
    dataset: str
    epochs: int
    evaluate_every: int
    arms: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def updates(self) -> int:
        return self.epochs * -(-50_000 // BATCH)

    @property
    def title(self) -> str:
        return f"{NETWORKS[self.model]}, {self.epochs} epochs"

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(self.run(arm, seed) for seed in self.seeds for arm in self.arms)

    def name(self, arm: str, seed: int) -> str:
        return f"{self.model}-{arm}-{self.epochs}-epochs-seed{seed}"

    def run(self, arm: str, seed: int) -> Run:
        where = {"dataset": self.dataset, "model": self.model, "split": SPLITS[self.model], "epochs": self.epochs}
        flags = {**where, **SHARED, **ARMS[arm], "seed": seed, "evaluate_every": self.evaluate_every}
        return Run(self.name(arm, seed), flags)


FOUR, SEEDS = (BP, STALE, SHRUNK, SCALED), (0, 1, 2, 3, 4)
# In order of importance. Within a part the runs go seed by seed, so that unfinished tables are balanced.
PARTS = (
    Part("resnet8", "cifar10_16", MIDDLE, 4, (*FOUR, FROZEN), SEEDS),
    Part("resnet8", "cifar10_16", SHORT, 1, FOUR, SEEDS),
    Part("resnet8", "cifar10_16", LONG, 16, FOUR, SEEDS),
    Part("resnet20", "cifar10", 30, 6, (BP, STALE, SHRUNK), (0, 1, 2)),
)
RUNS = tuple(run for part in PARTS for run in part.runs)
SMALL, LARGE = sorted(PARTS[:3], key=lambda part: part.epochs), PARTS[3]
SHOWN = (*SMALL, LARGE)  # from the shortest to the longest, then the other network
NETWORKS = {"resnet8": "ResNet-8, 16x16", "resnet20": "ResNet-20, 32x32"}

HEADS = (
    "network", "epochs", "updates", "arm", "n", "test error %, mean", "standard deviation", "by seed",
    "minus BP, by seed: mean (95% interval)", "command",
)  # fmt: skip
CLAIMS = (  # the claim, the rule, and its bounds in short; decisive.md has them in full
    ("Shrinking helps: β = 0.3 errs less than β = 1", rules.shrinking_helps,
     f"confirmed above 0, refuted below {rules.GAIN:g}"),
    ("The gap to BP closes with length", rules.gap_closes,
     f"confirmed below {rules.LEVEL:g} if the gap has surely fallen, refuted above {rules.LEVEL:g}"),
    ("The lower stages learn", rules.lower_stages_learn, f"confirmed above {rules.FAR:g}, refuted below"),
)  # fmt: skip
# The predictions of decisive.md for 5, 20 and 80 epochs of ResNet-8 and 30 of ResNet-20, in percent or points.
PREDICTED: dict[tuple[str, str | None], tuple[float | None, ...]] = {  # (arm, the arm subtracted from it)
    (BP, None): (33, 24.5, 20.5, 9.5),
    (STALE, BP): (6, 2.2, 0.9, 1.2),
    (SHRUNK, BP): (3, 0.8, 0.3, 0.5),
    (SCALED, BP): (0.5, -0.4, -0.4, None),
    (FROZEN, SHRUNK): (None, 13, None, None),
}
ALSO_SHOWN = ((STALE, SHRUNK), (SHRUNK, SCALED))  # differences without a prediction


def seeds(lines: Lines, part: Part, arm: str) -> Seeds:
    """The test errors of an arm in percent."""
    return of_runs(lines, {seed: part.name(arm, seed) for seed in part.seeds})


def errors_of(lines: Lines) -> rules.Errors:
    """The results of ResNet-8 in the form that the rules read."""
    return {arm: {part.epochs: seeds(lines, part, arm) for part in SMALL if arm in part.arms} for arm in ARMS}


def row(lines: Lines, part: Part, arm: str) -> list[str]:
    found, marks = seeds(lines, part, arm), markdown.marks(lines)
    of_seed = {seed: marks.get(part.name(arm, seed), "") for seed in part.seeds}
    minus = found.minus(seeds(lines, part, BP)).told() if arm != BP else ""
    head = [NETWORKS[part.model], str(part.epochs), f"{part.updates:,}", LABELS[arm]]
    return [*head, *found.cells(len(part.seeds), of_seed), minus, part.run(arm, 0).cell("S")]


def verdicts(lines: Lines) -> Mapping[str, str]:
    """The registered verdicts: on the paper's claim, and a table of its parts and of the gain by shrinking."""
    errors = errors_of(lines)
    claims = [(what, rule(errors), bounds) for what, rule, bounds in CLAIMS]
    gains = (
        (f"What β = 0.3 gains in {part.epochs} epochs is about staleness", rules.attribution(errors, part.epochs), "")
        for part in SMALL
    )
    rows = ((what, said.word, said.why, bounds) for what, said, bounds in (*claims, *gains))
    return {
        "overall": rules.overall(*(said for _, said, _ in claims)),
        "verdicts": markdown.table(("claim", "verdict", "found, in points", "registered"), rows),
    }


def differences(lines: Lines) -> str:
    """A table of the predicted and the measured numbers for each length."""
    unpredicted: dict[tuple[str, str | None], tuple[None, ...]] = dict.fromkeys(ALSO_SHOWN, (None,) * 4)
    rows = []
    for (arm, other), values in (PREDICTED | unpredicted).items():
        cells = [LABELS[arm] + (f" minus {LABELS[other]}" if other else "")]
        for part, value in zip(SHOWN, values, strict=True):
            found = seeds(lines, part, arm)
            told = found.minus(seeds(lines, part, other)).told() if other else f"{found.mean:.2f}" if found.n else ""
            cells.append("; ".join(filter(None, (as_predicted(value, other), told))))
        rows.append(cells)
    return markdown.table(("predicted; found (95% interval)", *(part.title for part in SHOWN)), rows)


def as_predicted(value: float | None, other: str | None) -> str:
    """A predicted error, or difference to another arm, in the format of decisive.md."""
    return "" if value is None else f"{value:+g}" if other else f"{value:g}"


def points(lines: Lines, parts: tuple[Part, ...]) -> dict[str, dict[int, list[float]]]:
    """{arm: {updates: the error minus BP's for every seed}}."""
    found: dict[str, dict[int, list[float]]] = {}
    for part in parts:
        for arm in part.arms[1:]:
            minus = seeds(lines, part, arm).minus(seeds(lines, part, BP)).by_seed
            if minus:
                found.setdefault(arm, {})[part.updates] = [*minus.values()]
    return found


def picture(lines: Lines, path: Path) -> None:
    labels = {arm: label for arm, label in LABELS.items() if arm != BP}
    series = [("ResNet-8, 16×16", points(lines, tuple(SMALL))), ("ResNet-20, 32×32", points(lines, (LARGE,)))]
    title = "CIFAR-10, K = 4: test error minus BP's of the same seed"
    run = [part.updates for part in SHOWN if seeds(lines, part, BP).by_seed]
    length_picture.draw(series, labels, FROZEN, run or [part.updates for part in SMALL], path, title)


def blocks(lines: Lines) -> Mapping[str, str]:
    rows = (row(lines, part, arm) for part in SHOWN for arm in part.arms)
    return {"table": markdown.table(HEADS, rows), "differences": differences(lines), **verdicts(lines)}


# `differences` keeps its runs in the same place, since its base runs are among these.
TABLE = Table("decisive", RUNS, blocks, picture, diverging=True, shares="decisive")

if __name__ == "__main__":
    sys.exit(main(TABLE))
