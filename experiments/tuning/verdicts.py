"""Whether a published claim holds here, as registered in experiments/corrections.md before the first run.

A difference is taken seed by seed, its interval is Student's at 95%, and fewer than MIN_SEEDS seeds decide nothing. An
arm of which more runs have diverged than of what it is compared with does not hold.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

from experiments.harness.intervals import Interval, interval, paired

MIN_SEEDS = 3
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


class Values(NamedTuple):
    """An arm's results. by_seed: errors or losses. diverged: the seeds whose runs have diverged."""

    by_seed: Mapping[int, float]
    diverged: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """The runs that have ended, in either way."""
        return len(self.by_seed) + len(self.diverged)


def beyond(staleness: float, most: float) -> Verdict | None:
    """What is said where gradients are later than a claim is about; None where they are not."""
    why = f"It was published for a staleness of {most:g} at most, and here it is up to {staleness:g}."
    return Verdict(BEYOND, why) if staleness > most else None


def too_few(n: int) -> Verdict:
    """n: the seeds for which there is a difference. Others are missing, or a run of theirs has diverged."""
    return Verdict(UNDECIDED, f"{n} of at least {MIN_SEEDS} seeds can be compared.")


def lost(arm: Values, other: Values) -> Verdict | None:
    """What is decided by runs that have diverged: the arm fails if its own did, three of them at least are there, and
    not as many of the other's."""
    n = len({*arm.by_seed, *arm.diverged} & {*other.by_seed, *other.diverged})
    if n < MIN_SEEDS or not arm.diverged:
        return None
    word = FAILS if len(arm.diverged) > len(other.diverged) else UNDECIDED
    return Verdict(word, f"{len(arm.diverged)} of its runs have diverged.")


def less(arm: Values, stale: Values, scale: Scale, what: str = "The gain is") -> Verdict:
    """The claim that an arm errs less than the one without a correction. It fails where a gain as large as the
    scale's can be excluded. what: begins the sentence with the difference."""
    if (found := lost(arm, stale)) is not None:
        return found
    by: Interval | None = interval(list(paired(stale.by_seed, arm.by_seed).values()))
    if by is None or by.n < MIN_SEEDS:
        return too_few(by.n if by else 0)
    why = f"{what} {by.told(scale.digits)} {scale.unit}, n = {by.n}."
    return Verdict(HOLDS if by.low > 0 else FAILS if by.high < scale.gain else UNDECIDED, why)


def level(arm: Values, bp: Values, most: float, scale: Scale) -> Verdict:
    """The claim that an arm is level with BP: behind it by no more than `most`, or ahead."""
    if (found := lost(arm, bp)) is not None:
        return found
    behind = interval(list(paired(arm.by_seed, bp.by_seed).values()))
    if behind is None or behind.n < MIN_SEEDS:
        return too_few(behind.n if behind else 0)
    why = f"Behind BP by {behind.told(scale.digits)} {scale.unit}, n = {behind.n}."
    return Verdict(HOLDS if behind.high < most else FAILS if behind.low > most else UNDECIDED, why)


def worse(arm: Values, bp: Values, scale: Scale) -> Verdict:
    """The claim that an arm is behind BP. It fails where it is surely behind by less than the scale's gain. Runs that
    have diverged are left out: what is registered of them is about claims in an arm's favour."""
    behind = interval(list(paired(arm.by_seed, bp.by_seed).values()))
    if behind is None or behind.n < MIN_SEEDS:
        return too_few(behind.n if behind else 0)
    why = f"Behind BP by {behind.told(scale.digits)} {scale.unit}, n = {behind.n}."
    return Verdict(HOLDS if behind.low > 0 else FAILS if behind.high < scale.gain else UNDECIDED, why)


def no_gain(arm: Values, stale: Values, scale: Scale) -> Verdict:
    """The claim that a correction gains next to nothing: it holds where a gain as large as the scale's can be excluded,
    and fails where there surely is a gain."""
    if (found := lost(arm, stale)) is not None:
        return found
    by = interval(list(paired(stale.by_seed, arm.by_seed).values()))
    if by is None or by.n < MIN_SEEDS:
        return too_few(by.n if by else 0)
    why = f"The gain is {by.told(scale.digits)} {scale.unit}, n = {by.n}."
    return Verdict(HOLDS if by.high < scale.gain else FAILS if by.low > 0 else UNDECIDED, why)


def within(times: Mapping[int, float | None], most: float, arm: Values, bp: Values) -> Verdict:
    """The claim that an arm reaches BP's loss with `most` times BP's tokens. times: by seed, None where it was not
    reached. It takes all seeds to decide. arm, bp: whose runs may have diverged."""
    if (found := lost(arm, bp)) is not None:
        return found
    if len(times) < MIN_SEEDS:
        return too_few(len(times))
    reached = sum(each is not None and each <= most for each in times.values())
    why = f"{reached} of {len(times)} seeds reach BP's loss with at most {most:g} times its tokens."
    return Verdict(HOLDS if reached == len(times) else UNDECIDED if reached else FAILS, why)


def smaller_gap(arm: Values, bp: Values, other: Values, other_bp: Values, scale: Scale) -> Verdict:
    """The claim that an arm is less far behind its BP than another one behind its own."""
    gap = Values(paired(arm.by_seed, bp.by_seed), arm.diverged)
    return less(gap, Values(paired(other.by_seed, other_bp.by_seed), other.diverged), scale, "Its gap is smaller by")


def gap_closed(arm: Values, stale: Values, bp: Values) -> float | None:
    """How much of the gap between the uncorrected arm and BP is closed: 0 for none, 1 for all, over the seeds that all
    three have. None where the gap may be chance: there are fewer than MIN_SEEDS, or its interval is not above 0. None,
    too, where a run of the arm has diverged."""
    shared = arm.by_seed.keys() & stale.by_seed.keys() & bp.by_seed.keys()
    gap = interval([stale.by_seed[seed] - bp.by_seed[seed] for seed in shared])
    if gap is None or arm.diverged or gap.n < MIN_SEEDS or gap.low <= 0:
        return None
    return fmean(stale.by_seed[seed] - arm.by_seed[seed] for seed in shared) / gap.mean
