"""Corrections of late gradients on text: a transformer in 8 stages with AdamW and Muon, and how gaps grow with K.

What counts is how many tokens an arm needs for the loss that BP has at the end of its tokens. corrections.md has what
was fixed before the first run.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean

from experiments.harness import markdown, pictures
from experiments.harness.intervals import interval, paired
from experiments.harness.run_table import ROOT, Lines, Table
from experiments.harness.table_command import main
from experiments.tuning import arms, corpus, growth, machines, texts, verdicts
from experiments.tuning.arms import Arm, Part
from experiments.tuning.texts import (
    AT_EIGHT,
    BP,
    EIGHT,
    GROWTH,
    GROWTH_OF_REST,
    OF_ADAMW,
    OF_MUON,
    PARTS,
    SAME_AT_TWO,
    STEPS,
    TARGET_STEPS,
)
from experiments.tuning.tokens import TIMES, named, of_name, times_at_end, times_bp, times_words, values
from experiments.tuning.verdicts import Scale, Verdict

NAME = "corrections_text"
GAIN = 0.02  # nats per byte: a smaller gain is none
NATS = Scale("nats", GAIN, digits=3)
MOST = {"within": 1.1, "within-1.27": 1.27}  # times BP's tokens; the first is the aim

AT_END = f"tokens of {STEPS:,} steps / BP's to the same loss"
HEADS = (
    "network", "K", "arm", "n", "test loss, mean (nats/byte)", "standard deviation", "by seed",
    "minus BP, by seed: mean (95% interval)", "tokens to BP's loss / BP's tokens",
    AT_END, "published", "here", "chosen", "tuning", "command",
)  # fmt: skip

STAGES = tuple(sorted({part.shared["K"] for part in GROWTH}))
OF_GROWTH = ("arm", *(f"K = {K}" for K in STAGES), "chosen", "command")

WORDS = (
    f"**The measure.** BP's loss is the test loss of its optimizer's BP after {TARGET_STEPS:,} steps "
    f"({TARGET_STEPS * texts.BATCH * texts.BLOCK:,} tokens), seed by seed. An arm trains for {STEPS:,} steps and is "
    f"tested every {texts.STEPS_PER_EPOCH}; between two tests the loss is taken as linear in the logarithm of the "
    f"steps. So 1.00 is BP, and an arm that does not reach BP's loss needs more than {TIMES:g}. An arm that has it at "
    f"its first test is given that test's {texts.STEPS_PER_EPOCH / TARGET_STEPS:.2f}, which may be too much. NAdam is "
    f"held against AdamW's BP. The other columns are of {TARGET_STEPS:,} steps, too, but for `{AT_END}`: "
    f"{STEPS:,} over the number of steps after which BP had the loss that the arm has after {STEPS:,}. That is a "
    "number also where BP's loss was not reached. `3 or more (2 of 3 seeds)`: with two of three seeds BP had that "
    f"loss at its first test already, after {texts.STEPS_PER_EPOCH:,} steps, so the true number is larger.",
    f"**Equal in all arms:** blocks of {texts.BLOCK} bytes, batches of {texts.BATCH}, {texts.BLOCKS:,} training "
    f"blocks, which are seen {texts.EPOCHS} times, a learning rate that rises for {texts.WARMUP} steps and is constant "
    "then, decoupled weight decay 0.1 of matrices, b2 0.99, momentum 0.9 (Muon 0.95, NAdam 0.99), the gradient of each "
    "stage clipped at norm 1, BP's, too, at the same K. Backward first, stashed weights (T2: current ones), drained, "
    "the delay line (T2: the pipeline). The tests are on the last tenth of the text.",
    "**Tuning.** Each arm has 4 runs with seed 0: learning rates of 0.0005, 0.001, 0.002 and 0.004, nothing else; the "
    "options of corrections are the published ones. Those runs have "
    f"{texts.TUNING_EPOCHS * texts.STEPS_PER_EPOCH:,} steps and are judged by the loss on {texts.HELD_OUT:,} training "
    f"blocks that no run trains on (`--hold-out`). With 16 layers the rates are those chosen for 8. T1 ends after "
    f"{texts.ANNEALED:,} updates: all updates of its tuning runs were divided, and the last two thirds of its final "
    f"runs' were not, at a rate that was chosen for the first. {arms.HOURS}",
    f"**The text:** the Python files of {', '.join(f'{name} {version}' for name, version in corpus.WHEELS.items())}, "
    f"as pinned in requirements.txt, in one file with the sha256 `{corpus.SHA256}`. `run` writes it to `{texts.TEXT}` "
    "and refuses other bytes.",
    "**Not the papers' settings:** 427,072 weights (16 layers: 821,312), 2,000 to 3,000 steps, FDG's schedule "
    "(staleness 2(K-k)-1) or, where an arm is called DDG, PipeDream's (K-k). β is not here: before AdamW and Muon it "
    "cancels.",
    *arms.CLAIMS,
    arms.REPEAT,
)

TRIED = (
    "Tried were, at FDG's staleness of up to 13, every correction behind AdamW but β (not every form of it), the "
    "combinations that papers make of T1, four corrections behind Muon and one combination, NAdam alone, and basis "
    "rotation alone and with linear prediction; on PipeDream's schedule (DDG), which is half as stale, AdamW and NAdam "
    "alone, and Muon and basis rotation alone and with linear prediction. Not tried were, among others, other "
    "corrections behind basis rotation, any behind NAdam, and updates of several batches (`--accumulate`), whose "
    "staleness in updates is smaller."
)


def verdict(lines: Lines, part: Part, arm: Arm) -> Verdict | None:
    """Whether the published claim holds here, by the registered rule; None where there is no claim."""
    if not arm.claim:
        return None
    if said := part.beyond(arm):
        return said
    own = values(lines, part, arm)
    if arm.rule in MOST:
        bp = of_name(lines, part, arm.reference)
        return verdicts.within(times_bp(lines, part, arm), MOST[arm.rule], own, bp)
    if arm.rule == "gap":
        adamw = of_name(lines, EIGHT, "fdg"), of_name(lines, EIGHT, "bp")
        return verdicts.smaller_gap(own, of_name(lines, part, arm.reference), *adamw, NATS)
    rule = verdicts.no_gain if arm.rule == "none" else verdicts.less
    return rule(own, of_name(lines, part, arm.stale), NATS)


def row(lines: Lines, part: Part, arm: Arm) -> list[str]:
    own, said, is_bp = values(lines, part, arm), verdict(lines, part, arm), arm.name.startswith("bp")
    bp = of_name(lines, part, arm.reference)
    minus = None if is_bp else interval(list(paired(own.by_seed, bp.by_seed).values()))
    return [
        part.shared["model"],
        str(part.shared["K"]),
        full_label(arm),
        *arms.measured(part, own, digits=4),
        minus.told(3) if minus else "",
        "" if is_bp else times_words(times_bp(lines, part, arm)),
        "" if is_bp else times_at_end(lines, part, arm),
        arm.claim if said else "",
        f"{said.word}. {said.why}" if said and own.n else "",
        *arms.how_made(part, lines, arm),
    ]  # fmt: skip


def full_label(arm: Arm) -> str:
    """With the optimizer, where the label does not name it."""
    optimizer = arm.flags["optimizer"]
    return arm.label if optimizer in ("nadam", "rotation") else f"{arm.label}, {optimizer}"


def growth_row(lines: Lines, first: Part, arm: Arm) -> list[str]:
    """An arm's gaps by K. first: the part of one K that has the arm; the others differ in K alone."""
    cells = []
    for K in STAGES:
        part = next((each for each in PARTS if each.name == f"grow{K}" and arm in each.arms), None)
        if part is None:
            (same,) = [each for each in (*OF_ADAMW, *OF_MUON) if each.name == SAME_AT_TWO[arm.name]]
            cells.append(f"as {full_label(same)}")
            continue
        own, bp = values(lines, part, arm), of_name(lines, part, arm.reference)
        found = interval(list(paired(own.by_seed, bp.by_seed).values()))
        told = [f"{len(own.diverged)} diverged"] if own.diverged else []
        if arm.name.startswith("bp") and own.by_seed:
            told.insert(0, f"{fmean(own.by_seed.values()):.3f}, n = {len(own.by_seed)}")
        elif found:
            told.insert(0, f"{found.told(3)}, n = {found.n}; {times_words(times_bp(lines, part, arm))}")
        cells.append("; ".join(told))
    chosen, _, command = arms.how_made(first, lines, arm)
    return [full_label(arm), *cells, chosen, command.replace(f"--K {first.shared['K']} ", "--K K ")]


def growing(lines: Lines) -> str:
    """How gaps grow with K: what the table shows, and the table."""
    of_one_K = [part for part in PARTS if part.name == GROWTH[0].name]
    rows = [growth_row(lines, part, arm) for part in of_one_K for arm in part.arms]
    return "\n\n".join([
        "**How the gap grows with K.** A network of 16 layers, with the rates that were chosen for 8 layers and 8 "
        "stages. BP: its test loss. All others: test loss minus BP's with the same optimizer and K (NAdam: AdamW's), "
        "mean and 95% interval by seed; then tokens to BP's loss over BP's tokens. BP, FDG and T1 with AdamW have "
        "three seeds. All others were added when the results for 8 layers were known, and get one, which tells "
        "nothing of the spread. The rates were chosen for K = 8 and 8 layers: an arm whose rate is small, as T1's is, "
        "may be behind at another K because of its rate alone. At K = 2 the staleness is 1: to divide by it changes "
        "nothing, linear prediction is the last update, and DDG is FDG, no less stale. So there "
        "such arms can differ by their chosen learning rate only; where that is the same as well, the cell names the "
        "arm whose run it would repeat.",
        markdown.table(OF_GROWTH, rows),
        f"![Test loss minus BP's over the number of stages]({NAME}_growth.png)",
    ])  # fmt: skip


def beside_adamw(lines: Lines) -> str:
    """Which arms whose BP is not AdamW's reach the loss of AdamW's BP in time, and how soon their own BP does."""
    late, own = [], []
    for part in AT_EIGHT:
        for arm in (each for each in part.arms if each.reference != BP.name):
            times = times_bp(lines, part, arm, BP.name)
            if len(times) == len(part.seeds) and all(each and each <= MOST["within"] for each in times.values()):
                late.append(f"{full_label(arm)}: {times_words(times)}")
                own.append(arm.reference)
    if not late:
        return ""
    bps = (named(EIGHT, name) for name in dict.fromkeys(own))
    without = [f"{full_label(arm)}: {times_words(times_bp(lines, part, arm, BP.name))}" for part, arm in bps]
    return (
        f"**Against AdamW's BP** instead of BP with their own optimizer, these reach its loss with every seed in at "
        f"most {MOST['within']:g} times its tokens (mean, 95% interval): {'; '.join(late)}. With the same optimizers "
        f"and no delay: {'; '.join(without)}."
    )


def aim(lines: Lines) -> str:
    """Which arms of K = 8 keep to the aim, of those that have all seeds."""
    found, gaps = {}, {}
    for part in (each for each in PARTS if each.name == EIGHT.name):
        losses = behind(lines, part)
        for arm in part.arms:
            times = times_bp(lines, part, arm)
            lost = values(lines, part, arm).diverged
            if len(times) == len(part.seeds) and not lost and not arm.name.startswith("bp"):
                label = full_label(arm)
                gap = losses.get(arm.label, [])
                found[label], gaps[label] = times, fmean(gap) if len(gap) == len(part.seeds) else math.inf
    if not found:
        return ""
    means = {
        label: sum(each or math.inf for each in times.values()) / len(times)
        for label, times in found.items()
    }  # fmt: skip
    best = min(means, key=lambda label: means[label])
    if means[best] == math.inf:
        near = min(gaps, key=lambda label: gaps[label])
        which = "all seeds" if any(each for times in found.values() for each in times.values()) else "any seed"
        return (
            f"**The aim** of {MOST['within']:g} times BP's tokens at K = 8 is not reached: of {len(found)} arms that "
            f"have all seeds none reaches its BP's loss with {which} in {TIMES:g} times the tokens. Nearest by loss is "
            f"{near}: {gaps[near]:+.3f} nats per byte behind its BP. It is the best of {len(found)}, so a little of "
            f"its lead is luck. {TRIED}"
        )
    word = "reached" if means[best] <= MOST["within"] else "not reached"
    return (
        f"**The best arm at K = 8** with all seeds is {best}: {times_words(found[best])} times its BP's tokens. The "
        f"aim of {MOST['within']:g} is {word}. It is the best of {len(found)}, so a little of its lead is luck."
    )


def of_machines(lines: Lines) -> str:
    """Which runs were made on another kind of machine, in a paragraph; "" if none was."""
    changes = "Where an arm and its BP are of two kinds, their difference contains what another machine changes."
    return machines.paragraph(PARTS, lines, changes, machines.before_a_command(lines))


def document(lines: Lines) -> str:
    """The question, the table, and what it was made with."""
    parts = [
        arms.progress(PARTS, lines),
        "**The question.** How many more tokens do late gradients cost a transformer, which correction gives back how "
        "many, and how does it grow with K? Arms, grids, seeds and rules were [registered](../corrections.md) before "
        "the first run; arms joined and claims were changed later, as is told there.",
        aim(lines),
        beside_adamw(lines),
        markdown.table(HEADS, (row(lines, part, arm) for part in AT_EIGHT for arm in part.arms)),
        f"![Test loss of every arm minus BP's]({NAME}.png)",
        growing(lines),
        markdown.origin(lines),
        *WORDS,
        of_machines(lines),
        arms.at_edges(PARTS, lines),
    ]
    return "\n\n".join(part for part in parts if part)


def behind(lines: Lines, part: Part, called: Callable[[Arm], str] = lambda arm: arm.label) -> dict[str, list[float]]:
    """What the arm is called -> test loss minus BP's, of each seed that both have."""
    found = {}
    for arm in part.arms:
        minus = paired(values(lines, part, arm).by_seed, of_name(lines, part, arm.reference).by_seed)
        if minus and not arm.name.startswith("bp"):
            found[called(arm)] = list(minus.values())
    return found


def with_diverged(lines: Lines, part: Part) -> dict[str, list[float]]:
    """`behind` for a picture: an arm of which runs have diverged says so, also where no run is left."""
    found = behind(lines, part)
    lost = {arm.label: len(values(lines, part, arm).diverged) for arm in part.arms if not arm.name.startswith("bp")}
    return {pictures.bar_label(name, lost[name]): found.get(name, []) for name in lost if name in found or lost[name]}


def picture(lines: Lines, path: Path) -> None:
    """Two: the arms at K = 8, and beside it, `_growth`, their gaps over K."""
    title = f"A transformer on text, {TARGET_STEPS:,} steps: test loss minus BP's (mean, and each seed)"
    label = "nats per byte behind BP with the same optimizer (NAdam: with AdamW)"
    groups: dict[str, dict[str, list[float]]] = {}
    for part in AT_EIGHT:
        groups.setdefault(part.title, {}).update(with_diverged(lines, part))
    pictures.bars(path, title, label, groups, by_number=True)
    gaps: dict[str, dict[int, list[float]]] = {}
    for part in (*GROWTH, *GROWTH_OF_REST):
        for name, found in behind(lines, part, full_label).items():
            gaps.setdefault(name, {})[part.shared["K"]] = found
    title = f"16 layers on text, {TARGET_STEPS:,} steps: test loss minus BP's (FDG and T1 with AdamW: three seeds)"
    growth.draw(gaps, STAGES, path.with_stem(f"{path.stem}_growth"), title, "nats per byte behind BP")


TABLE = Table(
    name=NAME,
    summary="A transformer on text: corrections of late gradients with AdamW and Muon, K = 8; growth with K",
    title="Corrections of late gradients: a transformer on text",
    runs=arms.tune_runs(PARTS),
    document=document,
    picture=picture,
    then=partial(arms.final_runs, PARTS),
    diverging=True,
    prepare=lambda: corpus.write(ROOT / texts.TEXT),
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
