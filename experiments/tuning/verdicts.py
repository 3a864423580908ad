"""Whether a published claim holds here, as registered in experiments/corrections.md before the first run.

A difference is taken seed by seed, its interval is Student's at 95%, and fewer than MIN_SEEDS seeds decide nothing. An
arm of which more runs have diverged than of what it is compared with does not hold.
"""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple

from experiments.harness.intervals import MIN_SEEDS, Interval, Seeds, interval

HOLDS, FAILS, UNDECIDED, BEYOND = "holds here", "does not hold here", "undecided", "not judged"


class Verdict(NamedTuple):
    """word: of the constants above. why: the numbers, in a sentence."""

    word: str
    why: str


class Scale(NamedTuple):
    """What is compared. gain: a smaller difference is none. digits: behind the point."""

    unit: str
    gain: float
    digits: int


def beyond(staleness: float, most: float) -> Verdict | None:
    """What is said where gradients are later than a claim is about; None where they are not."""
    why = f"It was published for a staleness of {most:g} at most, and here it is up to {staleness:g}."
    return Verdict(BEYOND, why) if staleness > most else None


def too_few(n: int) -> Verdict:
    """n: the seeds for which there is a difference. Others are missing, or a run of theirs has diverged."""
    return Verdict(UNDECIDED, f"{n} of at least {MIN_SEEDS} seeds can be compared.")


def lost(arm: Seeds, other: Seeds) -> Verdict | None:
    """What is decided by runs that have diverged: the arm fails if its own did, three of them at least are there, and
    not as many of the other's."""
    n = len({*arm.by_seed, *arm.diverged} & {*other.by_seed, *other.diverged})
    if n < MIN_SEEDS or not arm.diverged:
        return None
    word = FAILS if len(arm.diverged) > len(other.diverged) else UNDECIDED
    return Verdict(word, f"{len(arm.diverged)} of its runs have diverged.")


def judged(
    what: str, difference: Seeds, scale: Scale, yes: Callable[[Interval], bool], no: Callable[[Interval], bool]
) -> Verdict:
    """The verdict on a difference. what: begins the sentence with it. yes, no: of its interval."""
    found = difference.interval()
    if found is None or found.n < MIN_SEEDS:
        return too_few(found.n if found else 0)
    why = f"{what} {found.told(scale.digits)} {scale.unit}, n = {found.n}."
    return Verdict(HOLDS if yes(found) else FAILS if no(found) else UNDECIDED, why)


def less(arm: Seeds, stale: Seeds, scale: Scale, what: str = "The gain is") -> Verdict:
    """The claim that an arm errs less than the one without a correction. It fails where a gain as large as the
    scale's can be excluded."""
    gain = stale.minus(arm)
    return lost(arm, stale) or judged(what, gain, scale, lambda by: by.low > 0, lambda by: by.high < scale.gain)


def no_gain(arm: Seeds, stale: Seeds, scale: Scale) -> Verdict:
    """The claim that a correction gains next to nothing: it holds where a gain as large as the scale's can be excluded,
    and fails where there surely is a gain."""
    gain = stale.minus(arm)
    yes, no = (lambda by: by.high < scale.gain), (lambda by: by.low > 0)
    return lost(arm, stale) or judged("The gain is", gain, scale, yes, no)


def level(arm: Seeds, bp: Seeds, most: float, scale: Scale) -> Verdict:
    """The claim that an arm is level with BP: behind it by no more than `most`, or ahead."""
    behind = arm.minus(bp)
    return lost(arm, bp) or judged("Behind BP by", behind, scale, lambda by: by.high < most, lambda by: by.low > most)


def worse(arm: Seeds, bp: Seeds, scale: Scale) -> Verdict:
    """The claim that an arm is behind BP. It fails where it is surely behind by less than the scale's gain. Runs that
    have diverged are left out: what is registered of them is about claims in an arm's favour."""
    return judged("Behind BP by", arm.minus(bp), scale, lambda by: by.low > 0, lambda by: by.high < scale.gain)


def within(times: Mapping[int, float | None], most: float, arm: Seeds, bp: Seeds) -> Verdict:
    """The claim that an arm reaches BP's loss with `most` times BP's tokens. times: by seed, None where it was not
    reached. It takes all seeds to decide. arm, bp: whose runs may have diverged."""
    if (found := lost(arm, bp)) is not None:
        return found
    if len(times) < MIN_SEEDS:
        return too_few(len(times))
    reached = sum(each is not None and each <= most for each in times.values())
    why = f"{reached} of {len(times)} seeds reach BP's loss with at most {most:g} times its tokens."
    return Verdict(HOLDS if reached == len(times) else UNDECIDED if reached else FAILS, why)


def smaller_gap(arm: Seeds, bp: Seeds, other: Seeds, other_bp: Seeds, scale: Scale) -> Verdict:
    """The claim that an arm is less far behind its BP than another one behind its own."""
    return less(arm.minus(bp), other.minus(other_bp), scale, "Its gap is smaller by")


def gap_closed(arm: Seeds, stale: Seeds, bp: Seeds) -> float | None:
    """How much of the gap between the uncorrected arm and BP is closed: 0 for none, 1 for all, over the seeds that all
    three have. None where the gap may be chance: there are fewer than MIN_SEEDS, or its interval is not above 0. None,
    too, where a run of the arm has diverged."""
    shared = arm.by_seed.keys() & stale.by_seed.keys() & bp.by_seed.keys()
    gap = interval([stale.by_seed[seed] - bp.by_seed[seed] for seed in shared])
    if gap is None or arm.diverged or gap.n < MIN_SEEDS or gap.low <= 0:
        return None
    return fmean(stale.by_seed[seed] - arm.by_seed[seed] for seed in shared) / gap.mean
