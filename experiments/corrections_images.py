"""Every correction of late gradients on equal terms: ResNet-20 on CIFAR-10 in 5 epochs, K = 4 and K = 2.

Each arm (a way to train) is tuned on held-out training images with a grid of the same size. Then it is trained with
three seeds and tested on the test images. corrections.md has the rules that were fixed before the first run.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from experiments.harness import markdown, pictures
from experiments.harness.intervals import Seeds, of_runs
from experiments.harness.run_table import Lines, Table
from experiments.harness.table_command import main
from experiments.tuning import arms, verdicts
from experiments.tuning.arms import Arm, Part
from experiments.tuning.images import FOUR, OF_BP, OWN_BP, OWN_BPS, PARTS, TWO
from experiments.tuning.verdicts import Scale, Verdict

GAIN, LEVEL = 0.5, 1.0  # percentage points: the smallest gain that counts; the largest gap to BP that is still level
POINTS = Scale("points", GAIN, digits=2)
ALL_BPS = OF_BP, OWN_BPS  # BP is the same for every K

HEADS = (
    "K", "arm", "n", "test error %, mean", "standard deviation", "by seed",
    "minus BP with SGD, by seed: mean (95% interval)", "gap to BP closed", "minus BP with the same optimizer",
    "published", "here", "chosen", "tuning", "command",
)  # fmt: skip


def values(lines: Lines, part: Part, arm: Arm) -> Seeds:
    """The arm's test errors in percent."""
    return of_runs(lines, part.final_names(arm))


def of_name(lines: Lines, part: Part, name: str) -> Seeds:
    """The test errors of an arm by its name. All K have the same runs of BP."""
    where, arm = next((each, arm) for each in (part, OF_BP) for arm in each.arms if arm.name == name)
    return values(lines, where, arm)


def verdict(lines: Lines, part: Part, arm: Arm) -> Verdict | None:
    """Whether the published claim holds here, by the registered rule; None if there is no claim."""
    if not arm.claim:
        return None
    if said := part.beyond(arm):
        return said
    own, bp = values(lines, part, arm), of_name(lines, part, arm.reference)
    if arm.rule == "level":
        return verdicts.level(own, bp, LEVEL, POINTS)
    if arm.rule == "worse":
        return verdicts.worse(own, bp, POINTS)
    return verdicts.less(own, of_name(lines, part, arm.stale), POINTS)


def row(lines: Lines, part: Part, arm: Arm) -> list[str]:
    own, bp, said = values(lines, part, arm), of_name(lines, part, "bp"), verdict(lines, part, arm)
    alike = part not in ALL_BPS and arm.name not in ("fdg", *OWN_BP)
    closed = verdicts.gap_closed(own, of_name(lines, part, "fdg"), bp) if alike else None
    own_bp = OWN_BP.get(arm.name) if part not in ALL_BPS else None
    return [
        "any" if part in ALL_BPS else str(part.shared["K"]),
        arm.label,
        *part.cells(lines, arm, own, digits=2),
        own.minus(bp).told() if arm.name != "bp" else "",
        percent(closed) if closed is not None else "",
        own.minus(values(lines, OWN_BPS, own_bp)).told() if own_bp else "",
        arm.claim,
        f"{said.word}. {said.why}{without_t1(lines, part, arm)}" if said and own.n else "",
        *part.how_made(lines, arm),
    ]  # fmt: skip


def without_t1(lines: Lines, part: Part, arm: Arm) -> str:
    """A remark if tuning did not choose T1. Then the arm always divides the rate, while PipeMare's T1 stops dividing
    it."""
    choice = part.choice(lines, arm) or {}
    return " T1 was tried and not chosen." if choice.get("anneal_updates") == 0 else ""


def percent(part: float) -> str:
    """`29%`; 0% instead of -0%."""
    return f"{round(part, 2) + 0:.0%}"


def best(lines: Lines, names: Sequence[str]) -> str:
    """The arm with the lowest mean error at K = 4, among the named arms that have all seeds."""
    found = {arm.label: values(lines, FOUR, arm) for arm in FOUR.arms if arm.name in names}
    means = {label: own.mean for label, own in found.items() if len(own.by_seed) == len(FOUR.seeds)}
    label = min(means, key=means.__getitem__, default="")
    return f"{label}, {means[label]:.2f}%" if label else "none has all seeds yet"


def blocks(lines: Lines) -> Mapping[str, str]:
    names = [arm.name for arm in FOUR.arms]
    return {
        "table": markdown.table(HEADS, (row(lines, part, arm) for part in PARTS for arm in part.arms)),
        "best": best(lines, names),
        "best_sgd": best(lines, [name for name in names if name not in OWN_BP]),
    }


def picture(lines: Lines, path: Path) -> None:
    groups = {}
    for title, parts in ((FOUR.title, (FOUR,)), (TWO.title, (TWO,)), ("BP: nothing is late", ALL_BPS)):
        found = [(arm.label, values(lines, part, arm)) for part in parts for arm in part.arms]
        groups[title] = {
            pictures.bar_label(name, len(own.diverged)): list(own.by_seed.values()) for name, own in found if own.n
        }
    bp = of_name(lines, FOUR, "bp")
    reference = ("BP, SGD", bp.mean) if bp.by_seed else None
    title = "ResNet-20 on CIFAR-10, 5 epochs: corrections of late gradients (mean, and each seed)"
    pictures.bars(path, title, pictures.TEST_ERROR, groups, reference, by_number=True)


TABLE = Table(
    "corrections_images", arms.tune_runs(PARTS), blocks, picture, then=partial(arms.final_runs, PARTS), diverging=True
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
