"""What a few seeds say: means with Student's intervals, differences by seed, and a sentence on how far they carry."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# Student's t, two-sided 95% (the 97.5% quantile), by degrees of freedom: NIST/SEMATECH e-Handbook of Statistical
# Methods, table 1.3.6.7.2, with two more decimals. A test integrates the density to check them.
QUANTILES = {
    1: 12.70620, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 6: 2.44691, 7: 2.36462, 8: 2.30600, 9: 2.26216
}  # fmt: skip

UNKNOWN = "so the spread over seeds is unknown and nothing carries over"


class Interval(NamedTuple):
    """n values: mean, standard deviation (with n - 1), and the ends of the 95% interval of the mean. Of one value the
    deviation is None, and the interval is the whole line."""

    n: int
    mean: float
    deviation: float | None
    low: float
    high: float

    def __str__(self) -> str:
        return self.told(2)

    def told(self, digits: int) -> str:
        """+0.76 (+0.39 to +1.13), with so many digits."""
        ends = "" if self.deviation is None else f" ({self.low:+.{digits}f} to {self.high:+.{digits}f})"
        return f"{self.mean:+.{digits}f}{ends}"


def interval(values: Sequence[float]) -> Interval | None:
    """The mean of up to ten values with its 95% interval by Student's t; None without values."""
    if not values:
        return None
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Interval(1, mean, None, -math.inf, math.inf)
    deviation = statistics.stdev(values)
    half = QUANTILES[n - 1] * deviation / math.sqrt(n)
    return Interval(n, mean, deviation, mean - half, mean + half)


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """one - other for every seed that both have, in the order of the seeds."""
    return {seed: one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())}


def carries(what: str, found: Interval | None, unit: str = "points") -> str:
    """A sentence: an effect, its spread over the seeds, how many there are, and whether it is larger than the spread.

    Arguments:
        what: what the effect is, to stand before a colon.
        found: the interval of the differences by seed.
        unit: of the effect.

    Returns: the sentence, or "" where nothing was measured.
    """
    if found is None:
        return ""
    told = f"{what}: {found.mean:+.2f} {unit}"
    if found.deviation is None:
        return f"{told} with one seed (n = 1), {UNKNOWN}."
    spread = f"standard deviation over the seeds {found.deviation:.2f}, n = {found.n}"
    size = "larger" if abs(found.mean) > found.deviation else "not larger"
    zero = "includes 0" if found.low <= 0 <= found.high else "excludes 0"
    ends = f"{found.low:+.2f} to {found.high:+.2f}"
    return f"{told}, {size} than the seeds' spread ({spread}); the 95% interval, {ends}, {zero}."


def by_seed_paragraph(sentences: Sequence[str]) -> str:
    """The paragraph of what `carries` says of a table's differences; "" where it says nothing."""
    listed = [f"- {sentence}" for sentence in sentences if sentence]
    head = "**How far it carries.** Differences by seed, in percentage points of test error:\n"
    return "\n".join([head, *listed]) if listed else ""


def minus_bp(errors: Mapping[str, float], label: Callable[[str], str]) -> dict[str, float]:
    """label(name) -> the error of that run minus that of the run `bp`; {} without it.

    Arguments:
        errors: the test error of each finished run, by its name.
        label: how a sentence calls a run.
    """
    return {label(name): error - errors["bp"] for name, error in errors.items() if name != "bp" and "bp" in errors}


def of_one_seed(differences: Mapping[str, float], baseline: str, unit: str = "points") -> str:
    """The same for a table of one seed, in one sentence. differences: label -> difference to the baseline."""
    if not differences:
        return ""
    ranked = sorted(differences, key=lambda label: differences[label])
    ends = " to ".join(f"{differences[label]:+.2f} ({label})" for label in dict.fromkeys((ranked[0], ranked[-1])))
    return f"**How far it carries:** differences to {baseline} are {ends} {unit}, each of one seed (n = 1), {UNKNOWN}."
