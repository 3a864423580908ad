"""What counts as for and against, as registered in experiments/decisive.md before the first run.

All of it is computed from test errors in percent. A difference between arms is taken seed by seed, its interval is
Student's at 95%, and nothing is decided with fewer than MIN_SEEDS seeds.
"""

from collections.abc import Mapping
from typing import NamedTuple

from experiments.harness.intervals import Interval, interval, paired

# The arms.
BP, STALE, SHRUNK, SCALED, FROZEN = "bp", "fdg-beta1", "fdg-beta0.3", "scaled_bp-0.3", "fdg-beta0.001"
SHORT, MIDDLE, LONG = 5, 20, 80  # epochs
MIN_SEEDS = 3

# Percentage points.
GAIN = 0.5  # a gain by shrinking that is surely smaller is none; the paper's at K = 4 are 0.69 and 2.08
LEVEL = 0.75  # so far behind BP still counts as level
FAR = 5.0  # by how much training only the last stage has to be worse

CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"
REPAIRS, BOTH, NO_REPAIR = "repairs staleness", "repairs staleness, and gains without it too", "no repair of staleness"

Errors = Mapping[str, Mapping[int, Mapping[int, float]]]  # arm -> epochs -> seed -> test error in percent


class Verdict(NamedTuple):
    """word: of the constants above. why: the numbers, in a sentence."""

    word: str
    why: str


class Attribution(NamedTuple):
    """What shrinking gains, in points by seed: with the delay, without it, and how much more with than without."""

    with_delay: Interval | None
    without: Interval | None
    repair: Interval | None


def seeds(errors: Errors, arm: str, epochs: int) -> Mapping[int, float]:
    return errors.get(arm, {}).get(epochs, {})


def difference(errors: Errors, arm: str, other: str, epochs: int) -> Interval | None:
    """arm - other, by seed: above 0 where the arm errs more."""
    return interval(list(paired(seeds(errors, arm, epochs), seeds(errors, other, epochs)).values()))


def enough(*found: Interval | None) -> bool:
    return all(one is not None and one.n >= MIN_SEEDS for one in found)


def too_few(*found: Interval | None) -> Verdict:
    n = min(one.n if one else 0 for one in found)
    return Verdict(UNDECIDED, f"{n} of at least {MIN_SEEDS} seeds have been run.")


def shrinking_helps(errors: Errors, epochs: int = LONG) -> Verdict:
    """Claim 1: with K = 4, beta = 0.3 errs less than beta = 1."""
    gain = difference(errors, STALE, SHRUNK, epochs)
    if gain is None or not enough(gain):
        return too_few(gain)
    why = f"beta = 1 minus beta = 0.3 at {epochs} epochs: {gain}, n = {gain.n}."
    if gain.low > 0:
        return Verdict(CONFIRMED, why)
    return Verdict(REFUTED if gain.high < GAIN else UNDECIDED, why)


def gap_closes(errors: Errors) -> Verdict:
    """Claim 2: with beta = 0.3 the gap to BP falls with the length of the run, and in the end is none that matters."""
    gap = difference(errors, SHRUNK, BP, LONG)
    by_length = [paired(seeds(errors, SHRUNK, epochs), seeds(errors, BP, epochs)) for epochs in (SHORT, LONG)]
    fall = interval(list(paired(*by_length).values()))
    if gap is None or fall is None or not enough(gap, fall):
        return too_few(gap, fall)
    why = f"beta = 0.3 minus BP at {LONG} epochs: {gap}, n = {gap.n}; at {SHORT} epochs more by {fall}, n = {fall.n}."
    if gap.high < LEVEL and fall.low > 0:
        return Verdict(CONFIRMED, why)
    stays = gap.low > 0 and fall.mean <= 0
    return Verdict(REFUTED if gap.low > LEVEL or stays else UNDECIDED, why)


def lower_stages_learn(errors: Errors) -> Verdict:
    """Claim 3: with beta = 0.3 the lower stages learn, so it errs far less than with them as good as frozen."""
    loss = difference(errors, FROZEN, SHRUNK, MIDDLE)
    if loss is None or not enough(loss):
        return too_few(loss)
    why = f"beta = 0.001 minus beta = 0.3 at {MIDDLE} epochs: {loss}, n = {loss.n}."
    if loss.low > FAR:
        return Verdict(CONFIRMED, why)
    return Verdict(REFUTED if loss.high < FAR else UNDECIDED, why)


def overall(*claims: Verdict) -> str:
    """Confirmed where all claims are, refuted where one is."""
    words = [claim.word for claim in claims]
    if REFUTED in words:
        return REFUTED
    return CONFIRMED if all(word == CONFIRMED for word in words) else UNDECIDED


def shares(errors: Errors, epochs: int) -> Attribution:
    """What shrinking gains with and without the delay; the last is over the seeds that all four arms have."""
    with_delay = paired(seeds(errors, STALE, epochs), seeds(errors, SHRUNK, epochs))
    without = paired(seeds(errors, BP, epochs), seeds(errors, SCALED, epochs))
    repair = paired(with_delay, without)
    each = [interval(list(gains.values())) for gains in (with_delay, without, repair)]
    return Attribution(each[0], each[1], each[2])


def attribution(errors: Errors, epochs: int) -> Verdict:
    """Whether shrinking repairs staleness: whether it gains more with the delay than without."""
    with_delay, without, repair = found = shares(errors, epochs)
    if with_delay is None or without is None or repair is None or not enough(*found):
        return too_few(*found)
    why = (
        f"At {epochs} epochs shrinking gains {with_delay} with the delay and {without} without it, which is "
        f"{repair} more with it, n = {repair.n}."
    )
    if without.mean >= 0:
        why += " BP that is shrunk without delay is level with BP or ahead: the gain is not about staleness alone."
    if with_delay.low <= 0:
        return Verdict(UNDECIDED, f"{why} No gain is shown, so there is none to attribute.")
    if repair.low > 0:
        return Verdict(BOTH if without.low > 0 else REPAIRS, why)
    return Verdict(NO_REPAIR if repair.high < GAIN else UNDECIDED, why)
