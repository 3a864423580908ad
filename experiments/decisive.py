"""Does FDG catch up with BP as runs get longer, and does shrinking repair staleness? A registered experiment, K = 4.

ResNet-8 on CIFAR-10 averaged to 16x16 is small enough for two CPU cores to ask this of 5, 20 and 80 epochs with five
seeds. decisive.md has what was fixed before the first run; `decision/rules.py` computes the verdicts by it.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.decision import length_picture, rules
from experiments.decision.rules import BP, FROZEN, LONG, MIDDLE, SCALED, SHORT, SHRUNK, STALE
from experiments.harness import markdown
from experiments.harness.intervals import by_seed_paragraph, carries, interval, paired
from experiments.harness.run_table import Lines, Run, Table, command, shown
from experiments.harness.table_command import main

NAME, BATCH = "decisive", 128
SHARED = {"batch_size": BATCH, "K": 4, "warmup": "on"}
SPLITS = {"resnet8": "1,2,3", "resnet20": "2,4,7"}  # what `balanced` gives, at 16x16 and at 32x32
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
    """Runs of one length of one network. evaluate_every: epochs; it changes no training."""

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
# In the order in which they decide. Within a part the runs go seed by seed, so that whatever is finished is balanced.
PARTS = (
    Part("resnet8", "cifar10_16", MIDDLE, 4, (*FOUR, FROZEN), SEEDS),
    Part("resnet8", "cifar10_16", SHORT, 1, FOUR, SEEDS),
    Part("resnet8", "cifar10_16", LONG, 16, FOUR, SEEDS),
    Part("resnet20", "cifar10", 30, 6, (BP, STALE, SHRUNK), (0, 1, 2)),
)
RUNS = tuple(run for part in PARTS for run in part.runs)
SMALL, LARGE = sorted(PARTS[:3], key=lambda part: part.epochs), PARTS[3]
SHOWN = (*SMALL, LARGE)  # from the shortest to the longest, and then the other network
NETWORKS = {"resnet8": "ResNet-8, 16x16", "resnet20": "ResNet-20, 32x32"}

HEADS = (
    "network", "epochs", "updates", "arm", "n", "test error %, mean", "standard deviation", "by seed",
    "minus BP, by seed: mean (95% interval)", "command",
)  # fmt: skip
CLAIMS = {
    "Shrinking helps: β = 0.3 errs less than β = 1": rules.shrinking_helps,
    "The gap to BP closes with length": rules.gap_closes,
    "The lower stages learn": rules.lower_stages_learn,
}
BOUNDS = (  # of the claims; decisive.md has them in full
    f"confirmed above 0, refuted below {rules.GAIN:g}",
    f"confirmed below {rules.LEVEL:g} if the gap has surely fallen, refuted above {rules.LEVEL:g}",
    f"confirmed above {rules.FAR:g}, refuted below",
)
# What decisive.md predicts for 5, 20 and 80 epochs of ResNet-8 and 30 of ResNet-20, in percent or percentage points.
PREDICTED: dict[tuple[str, str | None], tuple[float | None, ...]] = {  # (arm, what is taken off)
    (BP, None): (33, 24.5, 20.5, 9.5),
    (STALE, BP): (6, 2.2, 0.9, 1.2),
    (SHRUNK, BP): (3, 0.8, 0.3, 0.5),
    (SCALED, BP): (0.5, -0.4, -0.4, None),
    (FROZEN, SHRUNK): (None, 13, None, None),
}
COMPARED = {
    "FDG with β = 1 minus BP": (STALE, BP),
    "FDG with β = 0.3 minus BP": (SHRUNK, BP),
    "FDG with β = 1 minus β = 0.3": (STALE, SHRUNK),
    "BP shrunk by 0.3 minus BP": (SCALED, BP),
    "FDG with β = 0.3 minus BP shrunk by 0.3": (SHRUNK, SCALED),
}

# What is said here of options that are not in SHARED is checked against the results by a test.
WORDS = (
    "**The arms.** BP; FDG with its delays and no shrinking; FDG with the paper's β for K = 4 (Table 6), not tuned; "
    "the control, BP with the gradient of stage k multiplied by 0.3^(K-k) and no delay; and, for 20 epochs, β = 0.001, "
    "which leaves stages 1 to 3 as good as frozen (weight decay still acts on them).",
    "**Equal in all arms:** the network and its four stages, the seed's first weights, batches and augmentation, and "
    "the paper's recipe at this length: learning rate 0.1, divided by 10 at 50%, 75% and 91.67% of the run, 0.01 for "
    "its first 1% (BP has that here too), momentum 0.9, weight decay 0.0005, random crops (padded by 2 pixels at "
    "16x16) and flips, the error after the last epoch. One number is not chosen among several epochs.",
    "**How we read the paper:** backward first, stashed weights, drained. BP and FDG run on one device with delayed "
    "gradients (`--engine delay-line`). The control's stages are of a class of their own, so it needs `--engine "
    "pipeline`; nothing is late in it, and on one core both engines run the same programs.",
    "**Not the paper's setting:** the paper trains ResNet-56 and WRN-28-10 for 300 epochs with K = 4. The question "
    "here is the direction in which length moves the differences.",
    markdown.REPEAT,
)


def by_seed(lines: Lines, part: Part, arm: str) -> dict[int, float]:
    """The test errors of an arm, in percent, of the seeds that have finished and not diverged."""
    return errors_by_seed(lines, {seed: part.run(arm, seed) for seed in part.seeds})


def errors_by_seed(lines: Lines, runs: Mapping[int, Run]) -> dict[int, float]:
    """The test errors in percent of the runs that have finished and not diverged, by seed."""
    found = {seed: lines[run.name] for seed, run in runs.items() if run.name in lines}
    return {seed: line["test_error_percent"] for seed, line in found.items() if not line.get("diverged")}


def errors_of(lines: Lines, parts: tuple[Part, ...] = tuple(SMALL)) -> dict[str, dict[int, dict[int, float]]]:
    """The results as the rules want them. parts: of one network."""
    return {arm: {part.epochs: by_seed(lines, part, arm) for part in parts if arm in part.arms} for arm in ARMS}


def row(lines: Lines, part: Part, arm: str) -> list[str]:
    errors = by_seed(lines, part, arm)
    head = [NETWORKS[part.model], str(part.epochs), f"{part.updates:,}", LABELS[arm]]
    found = interval(list(errors.values()))
    words = shown(command(part.run(arm, part.seeds[0]), None, None)).replace("--seed 0", "--seed S")
    last = f"`{words}`"
    if found is None:
        return [*head, "", "", "", "", "", last]
    minus = interval(list(paired(errors, by_seed(lines, part, BP)).values())) if arm != BP else None
    return [
        *head,
        str(found.n) if found.n == len(part.seeds) else f"{found.n} of {len(part.seeds)}",
        f"{found.mean:.2f}",
        "" if found.deviation is None else f"{found.deviation:.2f}",
        ", ".join(f"{seed}: {error:.2f}" for seed, error in errors.items()),
        str(minus) if minus else "",
        last,
    ]


def verdicts(lines: Lines) -> str:
    """What the registered rules make of the results."""
    errors = errors_of(lines)
    claims = {claim: rule(errors) for claim, rule in CLAIMS.items()}
    said = [f"**The claim, by the registered rules: {rules.overall(*claims.values())}.**\n"]
    for (claim, verdict), bounds in zip(claims.items(), BOUNDS, strict=True):
        said.append(f"- {claim}: **{verdict.word}**. {verdict.why} Registered: {bounds}.")
    if all(run.name in lines for part in SMALL for run in part.runs):
        said.append("\nThat is final: all runs of ResNet-8 are there, and ResNet-20 has no verdict of its own.")
    said.append("\n**Is it staleness that shrinking repairs?** What β = 0.3 gains, in percentage points:\n")
    for part in SMALL:
        verdict = rules.attribution(errors, part.epochs)
        said.append(f"- {part.epochs} epochs: **{verdict.word}**. {verdict.why}")
    return "\n".join(said)


def predictions(lines: Lines) -> str:
    """What was predicted before the first run, beside what came out."""
    rows = []
    for (arm, other), values in PREDICTED.items():
        cells = [f"{LABELS[arm]} minus {LABELS[other]}" if other else LABELS[arm]]
        for part, value in zip(SHOWN, values, strict=True):
            errors = errors_of(lines, (part,))
            if other:
                found = str(rules.difference(errors, arm, other, part.epochs) or "")
            else:
                mean = interval(list(rules.seeds(errors, arm, part.epochs).values()))
                found = f"{mean.mean:.2f}" if mean else ""
            cells.append("; ".join(filter(None, (as_predicted(value, other), found))))
        rows.append(cells)
    heads = ("predicted; found (95% interval)", *(part.title for part in SHOWN))
    return f"**What was predicted before the first run, and what was found:**\n\n{markdown.table(heads, rows)}"


def as_predicted(value: float | None, other: str | None) -> str:
    """A predicted error, or difference to another arm, as decisive.md has it."""
    return "" if value is None else f"{value:+g}" if other else f"{value:g}"


def places(lines: Lines) -> str:
    """On how many machines and at how many commits the runs of a length were made."""
    said, cores = [], []
    for part in SHOWN:
        found = {run.name: lines[run.name] for run in part.runs if run.name in lines}
        where = {(markdown.machine(line["hardware"]), *line["git_commits"]) for line in found.values()}
        said += [f"{part.title}: {len(where)}"] if found else []
        cores += [f"`{name}`" for name, line in found.items() if line["hardware"].get("usable_cores", 1) > 1]
    if not said:
        return ""
    several = f" Several cores trained {', '.join(cores)}, which one core does not repeat." if cores else ""
    return (
        f"**In how many places a part was trained**, that is machines or commits with other names: {'; '.join(said)}. "
        "Another machine rounds differently and changes a run as another seed does ([differences](differences.md)), so "
        f"that pairing by seed takes less out of the spread where there are several.{several}"
    )


def diverged(lines: Lines) -> str:
    """Names the runs that have diverged, as was registered; "" where none has."""
    names = [f"`{name}`" for name, line in lines.items() if line.get("diverged")]
    return f"**Diverged**, not repeated, and in no mean: {', '.join(names)}." if names else ""


def how_far(lines: Lines) -> str:
    """Every difference with its spread, in sentences."""
    said = []
    for part in SHOWN:
        errors = errors_of(lines, (part,))
        for what, (arm, other) in COMPARED.items():
            found = rules.difference(errors, arm, other, part.epochs)
            if found:
                said.append(f"{part.title}: {carries(what, found)}")
    return by_seed_paragraph(said)


def document(lines: Lines) -> str:
    """The question, the verdicts, the table, and what it was made with."""
    parts = [
        markdown.progress(lines, {part.title: part.runs for part in SHOWN}),
        "**The question.** In short runs BP is ahead of FDG. Is that because they are short, or because late gradients "
        "cost accuracy? And is what shrinking (β) gains at K = 4 a repair of staleness? The arms, seeds, rules and "
        "predictions were [registered](../decisive.md) before the first run.",
        verdicts(lines),
        diverged(lines),
        markdown.table(HEADS, (row(lines, part, arm) for part in SHOWN for arm in part.arms)),
        "S is the seed.",
        f"![Test error minus BP's over the number of updates]({NAME}.png)",
        "Every mark is a seed, a line joins the means. The marks of different arms stand beside each other around "
        "their number of updates. β = 0.001 errs so much more that it has a scale of its own, above.",
        predictions(lines),
        how_far(lines),
        places(lines),
        markdown.origin(lines),
        *WORDS,
    ]
    return "\n\n".join(part for part in parts if part)


def points(lines: Lines, parts: tuple[Part, ...]) -> dict[str, dict[int, list[float]]]:
    """arm -> updates -> the error minus BP's of every seed."""
    found: dict[str, dict[int, list[float]]] = {}
    for part in parts:
        base = by_seed(lines, part, BP)
        for arm in part.arms:
            minus = list(paired(by_seed(lines, part, arm), base).values())
            if arm != BP and minus:
                found.setdefault(arm, {})[part.updates] = minus
    return found


def picture(lines: Lines, path: Path) -> None:
    labels = {arm: label for arm, label in LABELS.items() if arm != BP}
    series = [("ResNet-8, 16×16", points(lines, tuple(SMALL))), ("ResNet-20, 32×32", points(lines, (LARGE,)))]
    title = "CIFAR-10, K = 4: test error minus BP's of the same seed"
    run = [part.updates for part in SHOWN if by_seed(lines, part, BP)]
    length_picture.draw(series, labels, FROZEN, run or [part.updates for part in SMALL], path, title)


TABLE = Table(
    name=NAME,
    summary="registered: ResNet-8 on 16x16 CIFAR-10, K = 4, for 5, 20 and 80 epochs: BP, FDG and a control",
    title="A decisive experiment: FDG and BP as a function of length, K = 4",
    runs=RUNS,
    document=document,
    picture=picture,
    diverging=True,
    shares=NAME,  # with `differences`, whose base arm is one of these
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
