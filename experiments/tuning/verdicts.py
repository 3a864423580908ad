"""Whether a published claim holds here, as registered in experiments/corrections.md before the first run.

Differences are taken seed by seed, with Student's 95% interval. With fewer than MIN_SEEDS seeds, the verdict is
undecided. A claim fails if more runs of its arm than of the compared arm have diverged.
"""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple

from experiments.harness.intervals import MIN_SEEDS, Interval, Seeds, interval

HOLDS, FAILS, UNDECIDED, BEYOND = "holds here", "does not hold here", "undecided", "not judged"


class Verdict(NamedTuple):
    """A verdict. word: one of the constants above. why: a sentence with the numbers."""

    word: str
    why: str


class Scale(NamedTuple):
    """The quantity that is compared. gain: the smallest difference that counts. digits: after the decimal point."""

    unit: str
    gain: float
    digits: int


def beyond(staleness: float, most: float) -> Verdict | None:
    """The verdict if gradients are staler than in the claim; None if they are not."""
    why = f"The claim was published for a staleness of at most {most:g}; here the staleness is up to {staleness:g}."
    return Verdict(BEYOND, why) if staleness > most else None


def too_few(n: int) -> Verdict:
    """The verdict for too few seeds. n: the seeds with a difference. For other seeds a run is missing or has
    diverged."""
    return Verdict(UNDECIDED, f"{n} of at least {MIN_SEEDS} seeds can be compared.")


def lost(arm: Seeds, other: Seeds) -> Verdict | None:
    """The verdict because of diverged runs, if there are at least MIN_SEEDS common seeds. The arm fails if more of its
    runs than of the other arm's runs have diverged. If not more have diverged, the verdict is undecided. None if no run
    of the arm has diverged."""
    n = len({*arm.by_seed, *arm.diverged} & {*other.by_seed, *other.diverged})
    if n < MIN_SEEDS or not arm.diverged:
        return None
    word = FAILS if len(arm.diverged) > len(other.diverged) else UNDECIDED
    return Verdict(word, f"{len(arm.diverged)} runs of this arm have diverged.")


def judged(
    what: str, difference: Seeds, scale: Scale, yes: Callable[[Interval], bool], no: Callable[[Interval], bool]
) -> Verdict:
    """The verdict on a difference. what: the beginning of the sentence. yes, no: whether the interval shows the claim,
    or excludes it."""
    found = difference.interval()
    if found is None or found.n < MIN_SEEDS:
        return too_few(found.n if found else 0)
    why = f"{what} {found.told(scale.digits)} {scale.unit}, n = {found.n}."
    return Verdict(HOLDS if yes(found) else FAILS if no(found) else UNDECIDED, why)


def less(arm: Seeds, stale: Seeds, scale: Scale, what: str = "The gain is") -> Verdict:
    """The claim that an arm has a smaller error than the arm without a correction. It fails if the interval excludes a
    gain of the scale's size."""
    gain = stale.minus(arm)
    return lost(arm, stale) or judged(what, gain, scale, lambda by: by.low > 0, lambda by: by.high < scale.gain)


def no_gain(arm: Seeds, stale: Seeds, scale: Scale) -> Verdict:
    """The claim that a correction gains next to nothing. It holds if the interval excludes a gain of the scale's size,
    and fails if the whole interval is a gain."""
    gain = stale.minus(arm)
    yes, no = (lambda by: by.high < scale.gain), (lambda by: by.low > 0)
    return lost(arm, stale) or judged("The gain is", gain, scale, yes, no)


def level(arm: Seeds, bp: Seeds, most: float, scale: Scale) -> Verdict:
    """The claim that an arm is level with BP: at most `most` worse, or better."""
    behind = arm.minus(bp)
    yes, no = (lambda by: by.high < most), (lambda by: by.low > most)
    return lost(arm, bp) or judged("The arm is behind BP by", behind, scale, yes, no)


def worse(arm: Seeds, bp: Seeds, scale: Scale) -> Verdict:
    """The claim that an arm is behind BP. It fails if the whole interval is below the scale's gain. Diverged runs are
    left out, since the registered rule on diverged runs is for claims in an arm's favour."""
    yes, no = (lambda by: by.low > 0), (lambda by: by.high < scale.gain)
    return judged("The arm is behind BP by", arm.minus(bp), scale, yes, no)


def within(times: Mapping[int, float | None], most: float, arm: Seeds, bp: Seeds) -> Verdict:
    """The claim that an arm reaches BP's loss with `most` times BP's tokens. times: by seed; None if the loss was not
    reached. The seeds must agree for a decision. arm, bp: their results, for the rule on diverged runs."""
    if (found := lost(arm, bp)) is not None:
        return found
    if len(times) < MIN_SEEDS:
        return too_few(len(times))
    reached = sum(each is not None and each <= most for each in times.values())
    why = f"{reached} of {len(times)} seeds reach BP's loss with at most {most:g} times its tokens."
    return Verdict(HOLDS if reached == len(times) else UNDECIDED if reached else FAILS, why)


def smaller_gap(arm: Seeds, bp: Seeds, other: Seeds, other_bp: Seeds, scale: Scale) -> Verdict:
    """The claim that an arm's gap to its BP is smaller than another arm's gap to its own BP."""
    return less(arm.minus(bp), other.minus(other_bp), scale, "The arm's gap to its BP is smaller by")


def gap_closed(arm: Seeds, stale: Seeds, bp: Seeds) -> float | None:
    """The share of the gap between the uncorrected arm and BP that the arm closes (0: none, 1: all), over the seeds
    that all three arms have. None if the gap may be chance: if there are fewer than MIN_SEEDS seeds, or if the interval
    is not above 0. None also if a run of the arm has diverged."""
    shared = arm.by_seed.keys() & stale.by_seed.keys() & bp.by_seed.keys()
    gap = interval([stale.by_seed[seed] - bp.by_seed[seed] for seed in shared])
    if gap is None or arm.diverged or gap.n < MIN_SEEDS or gap.low <= 0:
        return None
    return fmean(stale.by_seed[seed] - arm.by_seed[seed] for seed in shared) / gap.mean
