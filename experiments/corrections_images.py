"""Every correction of late gradients on equal terms: ResNet-20 on CIFAR-10 in 5 epochs, K = 4 and K = 2.

Each arm is tuned by a grid of one size on training images that are held out, and then trained with three seeds and
tested on the test images. corrections.md has what was fixed before the first run.
"""

import sys
from functools import partial
from pathlib import Path
from statistics import fmean

from experiments.harness import markdown, pictures
from experiments.harness.intervals import interval, paired
from experiments.harness.run_table import Lines, Table
from experiments.harness.table_command import main
from experiments.tuning import arms, machines, verdicts
from experiments.tuning.arms import Arm, Part
from experiments.tuning.images import EPOCHS, FOUR, HELD_OUT, OF_BP, OWN_BP, OWN_BPS, PARTS, QUARTER, TUNING_EPOCHS, TWO
from experiments.tuning.verdicts import Scale, Values, Verdict

NAME = "corrections_images"
GAIN, LEVEL = 0.5, 1.0  # percentage points: a smaller gain than the first is none; so far behind BP is still level
POINTS = Scale("points", GAIN, digits=2)
ALL_BPS = OF_BP, OWN_BPS  # BP: the same for every K
AIM = 28.0  # test error % at K = 4, registered: half of the gap between FDG's 34.2 and BP's 22.2 of earlier runs
# The first runs on a GPU had the code of the second commit; git knew the first there.
UNSAVED, COMMITTED = "5d8f995da7051418c2db4cbca7b8e2f5080982e2-dirty", "d416e74349"

HEADS = (
    "K", "arm", "n", "test error %, mean", "standard deviation", "by seed",
    "minus BP with SGD, by seed: mean (95% interval)", "gap to BP closed", "published", "here", "chosen", "tuning",
    "command",
)  # fmt: skip

WORDS = (
    f"**Equal in all arms:** ResNet-20, {EPOCHS} epochs of CIFAR-10, batches of 128, the seed's first weights, order "
    "and augmentation, the paper's schedule at this length (the rate is divided by 10 at 50%, 75% and 91.67%; for the "
    "first 1% it is 0.01 at most, with BP, too), weight decay 0.0005 (NAdam and basis rotation: decoupled, 0.1, "
    "matrices), backward first, stashed weights (T2: current ones), drained. The error is that after the last epoch.",
    "**Tuning.** For each K an arm has 6 runs with seed 0: half, once and twice its optimizer's usual rate (SGD 0.1, "
    "NAdam and basis rotation 0.001), each with two settings of its own; momentum 0.9 or 0.7 where it has none. "
    f"Those runs have {TUNING_EPOCHS} epochs of {50_000 - HELD_OUT:,} training images and are judged by the last "
    f"{HELD_OUT:,} (`--hold-out {HELD_OUT}`). Test images are not looked at. The final runs train on all training "
    f"images for {EPOCHS} epochs with the options of the best one. What is best in {TUNING_EPOCHS} epochs need not be "
    f"best in {EPOCHS}; T1 with T = {QUARTER} ends after a quarter of the final runs' first phase, and after two "
    "thirds of the tuning runs'. Where `--anneal-updates 0` was chosen, updates are divided by the staleness for ever: "
    "that is staleness-aware SGD and not T1, and with T2 no paper's method. Arms with a setting of their own keep "
    "momentum 0.9 (NAdam tunes its own), while FDG, BP and others could choose 0.7; part of a difference may be that. "
    f"{arms.HOURS}",
    "**The gap to BP closed** is 0% for FDG with β = 1 and 100% for BP, by the seeds that all three have. It stays "
    "blank where FDG's own gap may be chance, and for an arm of which a run has diverged. BP and FDG are trained with "
    "SGD, so it is blank for NAdam and basis rotation, too: it would contain what another optimizer brings without any "
    "delay, as NAdam's verdict does. How far they are behind BP with the same optimizer stands above the table.",
    "**Not the papers' settings:** five epochs, one network, K stages on one device that delays gradients as FDG's "
    "schedule does (staleness 5, 3, 1, 0 at K = 4 and 1, 0 at K = 2; PipeDream's is about half). At a staleness of 1 "
    "`linear` is `last`, `nesterov` is `spike`, and dividing by it does nothing, so K = 2 lacks these five arms. "
    "`combined` and `double`, which joined later, would differ there and were not run. T2 needs current weights and so "
    "the pipeline engine; the training is the schedule's all the same. A claim that does not hold here may hold there.",
    *arms.CLAIMS,
    arms.REPEAT,
)


def values(lines: Lines, part: Part, arm: Arm) -> Values:
    """The arm's test errors in percent."""
    found = part.finished(lines, arm)
    lost = tuple(seed for seed, line in found.items() if line.get("diverged"))
    return Values({seed: line["test_error_percent"] for seed, line in found.items() if seed not in lost}, lost)


def of_name(lines: Lines, part: Part, name: str) -> Values:
    """The same of an arm by its name; BP is one part for every K."""
    where, arm = next((each, arm) for each in (part, OF_BP) for arm in each.arms if arm.name == name)
    return values(lines, where, arm)


def verdict(lines: Lines, part: Part, arm: Arm) -> Verdict | None:
    """Whether the published claim holds here, by the registered rule; None where there is no claim."""
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
    minus = interval(list(paired(own.by_seed, bp.by_seed).values())) if arm.name != "bp" else None
    alike = part not in ALL_BPS and arm.name not in ("fdg", *OWN_BP)
    closed = verdicts.gap_closed(own, of_name(lines, part, "fdg"), bp) if alike else None
    return [
        "any" if part in ALL_BPS else str(part.shared["K"]),
        arm.label,
        *arms.measured(part, own, digits=2),
        str(minus) if minus else "",
        percent(closed) if closed is not None else "",
        arm.claim,
        f"{said.word}. {said.why}{without_t1(lines, part, arm)}" if said and own.n else "",
        *arms.how_made(part, lines, arm),
    ]  # fmt: skip


def without_t1(lines: Lines, part: Part, arm: Arm) -> str:
    """What is said beside a verdict on an arm that could have been PipeMare's T1, and is division for ever."""
    choice = part.choice(lines, arm) or {}
    return " T1 was tried and not chosen." if choice.get("anneal_updates") == 0 else ""


def percent(part: float) -> str:
    """`29%`; 0% where it would be -0%."""
    return f"{round(part, 2) + 0:.0%}"


def aim(lines: Lines) -> str:
    """How near the best arm of K = 4 comes to BP, and the best one that has BP's optimizer."""
    labels = {arm.name: arm.label for arm in FOUR.arms}
    found = {arm.name: values(lines, FOUR, arm) for arm in FOUR.arms}
    means = {name: fmean(own.by_seed.values()) for name, own in found.items() if len(own.by_seed) == len(FOUR.seeds)}
    bp = of_name(lines, FOUR, "bp")
    if not means or not bp.by_seed:
        return ""
    best = min(means, key=means.__getitem__)
    ended = all(found[arm.name].n == len(FOUR.seeds) or FOUR.lost(lines, arm) for arm in FOUR.arms)
    alike = min((name for name in means if name not in OWN_BP), key=means.__getitem__, default=best)
    word = "reached" if means[best] <= AIM else "not reached" if ended else "not reached yet"
    if alike != best and means[best] <= AIM < means[alike]:
        word += ", but not with SGD"
    other = f"; of those with SGD, {labels[alike]}: {means[alike]:.2f}%" if alike != best else ""
    closed = verdicts.gap_closed(found[alike], found["fdg"], bp)
    those = f"the {len(means)} of {len(found)} that have all seeds" if len(means) < len(found) else f"all {len(found)}"
    here = f" Of the gap in this table {labels[alike]} closes {percent(closed)}." if closed is not None else ""
    return (
        f"**The best arm at K = 4** of {those} is {labels[best]}: {means[best]:.2f}%{other}. BP with SGD: "
        f"{fmean(bp.by_seed.values()):.2f}% (n = {len(bp.by_seed)}), the same {EPOCHS} epochs. The registered aim of "
        f"{AIM:.0f}%, about half of the gap that single runs had shown before (BP 22.2%, FDG 34.2%), is {word}.{here} "
        "The best is chosen on the test images, so a little of its lead is luck."
    )


def optimizers(lines: Lines) -> str:
    """How far arms with another optimizer than SGD are behind BP with the same one, in a paragraph; "" without runs."""
    told = []
    for part in (FOUR, TWO):
        for arm in (each for each in part.arms if each.name in OWN_BP):
            own, bp = values(lines, part, arm), values(lines, OWN_BPS, OWN_BP[arm.name])
            behind = interval(list(paired(own.by_seed, bp.by_seed).values()))
            said = [f"{behind.told(2)}, n = {behind.n}"] if behind else []
            lost = (("", own.diverged), ("of BP ", bp.diverged)) if own.n else ()
            said += [f"{len(seeds)} {whose}diverged" for whose, seeds in lost if seeds]
            told += [f"{arm.label}, {part.title}: {', '.join(said)}"] if said else []
    what = "**Behind BP with the same optimizer**, by seed, in points with the 95% interval:"
    return f"{what} {'; '.join(told)}." if told else ""


def of_machines(lines: Lines) -> str:
    """Which runs were made on another kind of machine, in a paragraph; "" if none was."""
    seen = (
        "Differences are taken seed by seed, whatever machine made a run. [BP and FDG on both](images_on_gpu.md) shows "
        "what another machine changes."
    )
    return machines.paragraph(PARTS, lines, seen, repeat_on_gpu(lines))


def repeat_on_gpu(lines: Lines) -> str:
    """What stands before the commands of runs that were made on a GPU; "" if none was."""
    unsaved = any(UNSAVED in line.get("git_commits", ()) for line in lines.values() if arms.on_gpu(line))
    told = f" The commit listed as `{UNSAVED[:10]}-dirty` had the code of `{COMMITTED}`." if unsaved else ""
    return machines.before_a_command(lines) + told


def document(lines: Lines) -> str:
    """The question, the table, and what it was made with."""
    rows = (row(lines, part, arm) for part in PARTS for arm in part.arms)
    parts = [
        arms.progress(PARTS, lines),
        "**The question.** How much of what late gradients cost does each published correction give back, on one task "
        "and tuned alike? Arms, grids, seeds and rules were [registered](../corrections.md) before the first run; "
        "arms joined and claims were changed later, as is told there.",
        aim(lines),
        optimizers(lines),
        markdown.table(HEADS, rows),
        f"![Test error of every arm]({NAME}.png)",
        markdown.origin(lines),
        *WORDS,
        of_machines(lines),
        arms.at_edges(PARTS, lines),
    ]
    return "\n\n".join(part for part in parts if part)


def picture(lines: Lines, path: Path) -> None:
    groups = {}
    for title, parts in ((FOUR.title, (FOUR,)), (TWO.title, (TWO,)), ("BP: nothing is late", ALL_BPS)):
        found = [(arm.label, values(lines, part, arm)) for part in parts for arm in part.arms]
        groups[title] = {
            pictures.bar_label(name, len(own.diverged)): list(own.by_seed.values()) for name, own in found if own.n
        }
    bp = interval(list(of_name(lines, FOUR, "bp").by_seed.values()))
    title = f"ResNet-20 on CIFAR-10, {EPOCHS} epochs: corrections of late gradients (mean, and each seed)"
    pictures.bars(path, title, pictures.TEST_ERROR, groups, ("BP, SGD", bp.mean) if bp else None, by_number=True)


TABLE = Table(
    name=NAME,
    summary=f"ResNet-20 on CIFAR-10, {EPOCHS} epochs: every correction of late gradients, tuned alike, K = 4 and 2",
    title=f"Corrections of late gradients: ResNet-20 on CIFAR-10 in {EPOCHS} epochs",
    runs=arms.tune_runs(PARTS),
    document=document,
    picture=picture,
    then=partial(arms.final_runs, PARTS),
    diverging=True,
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
