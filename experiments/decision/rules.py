"""The rules for and against each claim, as registered in experiments/decisive.md before the first run.

All verdicts are computed from test errors in percent. Differences between arms are taken seed by seed, with Student's
95% interval. With fewer than MIN_SEEDS seeds, the verdict is undecided.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from experiments.harness.intervals import MIN_SEEDS, Interval, Seeds

# The arms.
BP, STALE, SHRUNK, SCALED, FROZEN = "bp", "fdg-beta1", "fdg-beta0.3", "scaled_bp-0.3", "fdg-beta0.001"
SHORT, MIDDLE, LONG = 5, 20, 80  # epochs

# Percentage points.
GAIN = 0.5  # if shrinking surely gains less, it does not help; the paper's gains at K = 4 are 0.69 and 2.08
LEVEL = 0.75  # the largest error above BP's that still counts as level
FAR = 5.0  # training only the last stage must be worse by at least this

CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"
REPAIRS, BOTH, NO_REPAIR = "repairs staleness", "repairs staleness, and gains without it too", "no repair of staleness"

Errors = Mapping[str, Mapping[int, Seeds]]  # arm -> epochs -> test errors in percent


class Verdict(NamedTuple):
    """A verdict. word: one of the constants above. why: a sentence with the numbers."""

    word: str
    why: str


def difference(errors: Errors, arm: str, other: str, epochs: int) -> Seeds:
    """arm - other, by seed: positive if the arm has the larger error."""
    one, another = (errors.get(name, {}).get(epochs, Seeds({})) for name in (arm, other))
    return one.minus(another)


def decided(
    why: str, found: Sequence[Seeds], yes: Callable[..., bool], no: Callable[..., bool], good: str = CONFIRMED,
    bad: str = REFUTED,
) -> Verdict:  # fmt: skip
    """The verdict from intervals. why: a format with a place for each interval. yes, no: whether the intervals show the
    claim, or exclude it."""
    intervals = [each.interval() for each in found]
    known = [each for each in intervals if each and each.n >= MIN_SEEDS]
    if len(known) < len(found):
        n = min(len(each.by_seed) for each in found)
        return Verdict(UNDECIDED, f"{n} of at least {MIN_SEEDS} seeds have been run.")
    word = good if yes(*known) else bad if no(*known) else UNDECIDED
    return Verdict(word, why.format(*(f"{each}, n = {each.n}" for each in known)))


def shrinking_helps(errors: Errors, epochs: int = LONG) -> Verdict:
    """Claim 1: with K = 4, beta = 0.3 has a smaller error than beta = 1."""
    why = f"beta = 1 minus beta = 0.3 at {epochs} epochs: {{}}."
    gain = difference(errors, STALE, SHRUNK, epochs)
    return decided(why, [gain], lambda gain: gain.low > 0, lambda gain: gain.high < GAIN)


def gap_closes(errors: Errors) -> Verdict:
    """Claim 2: with beta = 0.3 the gap to BP falls with the length of the run, and is below LEVEL in the longest
    runs."""
    short, long = (difference(errors, SHRUNK, BP, epochs) for epochs in (SHORT, LONG))
    why = f"beta = 0.3 minus BP at {LONG} epochs: {{}}. At {SHORT} epochs this difference is larger by {{}}."

    def stays(gap: Interval, fall: Interval) -> bool:
        return gap.low > LEVEL or (gap.low > 0 and fall.mean <= 0)

    return decided(why, [long, short.minus(long)], lambda gap, fall: gap.high < LEVEL and fall.low > 0, stays)


def lower_stages_learn(errors: Errors) -> Verdict:
    """Claim 3: with beta = 0.3 the lower stages learn, so the error is far smaller than with nearly frozen lower
    stages."""
    why = f"beta = 0.001 minus beta = 0.3 at {MIDDLE} epochs: {{}}."
    loss = difference(errors, FROZEN, SHRUNK, MIDDLE)
    return decided(why, [loss], lambda loss: loss.low > FAR, lambda loss: loss.high < FAR)


def overall(*claims: Verdict) -> str:
    """Confirmed if all claims are confirmed, refuted if one is refuted."""
    words = [claim.word for claim in claims]
    if REFUTED in words:
        return REFUTED
    return CONFIRMED if all(word == CONFIRMED for word in words) else UNDECIDED


def attribution(errors: Errors, epochs: int) -> Verdict:
    """Whether shrinking repairs staleness: whether it gains more points with the delay than without, seed by seed."""
    gains = difference(errors, STALE, SHRUNK, epochs), difference(errors, BP, SCALED, epochs)
    without = gains[1].interval()
    said = decided(
        "Gain with the delay: {}; without the delay: {}; difference of both: {}.", [*gains, gains[0].minus(gains[1])],
        lambda late, _, repair: late.low > 0 and repair.low > 0,
        lambda late, _, repair: late.low > 0 and repair.high < GAIN,
        BOTH if without and without.low > 0 else REPAIRS, NO_REPAIR,
    )  # fmt: skip
    alone = " Without a delay, shrinking is no worse than BP, so the gain is not about staleness alone."
    return said._replace(why=said.why + alone) if without and without.mean >= 0 else said
