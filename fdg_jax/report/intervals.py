"""The mean of a number over a few seeds, with its confidence interval."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """Statistics of n values: mean, standard deviation (with n - 1), and the ends of the mean's 95% confidence
    interval. For one value the deviation is None, and the interval is infinite."""

    n: int
    mean: float
    deviation: float | None
    low: float
    high: float

    def __str__(self) -> str:
        return self.told(2)

    def told(self, digits: int) -> str:
        """Text such as +0.76 (+0.39 to +1.13). digits: the number of decimals."""
        ends = "" if self.deviation is None else f" ({self.low:+.{digits}f} to {self.high:+.{digits}f})"
        return f"{self.mean:+.{digits}f}{ends}"


def interval(values: Sequence[float]) -> Interval | None:
    """The mean of values with its 95% interval by Student's t; None without values."""
    if not values:
        return None
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Interval(1, mean, None, -math.inf, math.inf)
    from scipy.special import stdtrit  # slow to import

    deviation = statistics.stdev(values)
    half = float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
    return Interval(n, mean, deviation, mean - half, mean + half)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """{seed: ours - theirs} for every seed that both have, in the order of the seeds."""
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}
