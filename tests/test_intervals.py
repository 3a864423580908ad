"""The statistics of a few seeds, against numbers computed by hand and by integration."""

import math

import pytest

from experiments.harness.intervals import QUANTILES, Seeds, interval


@pytest.mark.parametrize("freedom", [2, 4])
def test_the_quantiles_leave_two_and_a_half_percent_above_them(freedom):
    """Student's density integrated from 0 by Simpson's rule; its error is far below the quantile's fifth decimal."""
    n, steps = freedom, 20_000
    front = math.gamma((n + 1) / 2) / (math.sqrt(n * math.pi) * math.gamma(n / 2))
    width = QUANTILES[n] / steps
    heights = [front * (1 + (i * width) ** 2 / n) ** (-(n + 1) / 2) for i in range(steps + 1)]
    weights = [1, *[4 if i % 2 else 2 for i in range(1, steps)], 1]
    below = 0.5 + width / 3 * sum(weight * height for weight, height in zip(weights, heights, strict=True))
    assert below == pytest.approx(0.975, abs=1e-6)


def test_an_interval_is_what_it_is_by_hand():
    found = interval([1.0, 2.0, 3.0])  # deviation 1, 4.30265 / sqrt(3) = 2.48414
    assert (found.n, found.mean, found.deviation) == (3, 2.0, 1.0)
    assert (found.low, found.high) == pytest.approx((-0.48414, 4.48414), abs=1e-5)
    assert str(found) == "+2.00 (-0.48 to +4.48)"
    assert -1 < found.low <= 0 and 4 <= found.high < 5
    five = interval([0.5, 0.7, 0.6, 0.8, 0.4])  # deviation 0.158114, 2.77645 / sqrt(5) = 1.24167
    assert (five.low, five.high) == pytest.approx((0.6 - 0.19632, 0.6 + 0.19632), abs=1e-5)


def test_one_value_has_no_spread_and_none_has_no_interval():
    one = interval([3.0])
    assert (one.n, one.mean, one.deviation, one.low, one.high) == (1, 3.0, None, -math.inf, math.inf)
    assert str(one) == "+3.00"
    assert interval([]) is None


def test_differences_are_those_of_the_seeds_that_both_have():
    minus = Seeds({3: 5.0, 0: 2.0, 1: 9.0}, (4,)).minus(Seeds({0: 1.5, 3: 7.0, 2: 1.0}))
    assert list(minus.by_seed.items()) == [(0, 0.5), (3, -2.0)] and minus.diverged == (4,)


def test_cells_say_how_many_seeds_there_are_which_diverged_and_where_one_was_measured():
    found = Seeds({0: 1.0, 2: 3.0}, (1,))
    assert found.cells(5, {2: " [b]"}) == ["3 of 5, 1 diverged", "2.00", "1.41", "0: 1.00, 2: 3.00 [b], 1: diverged"]
    assert Seeds({0: 1.0}).cells(1, {}, 3) == ["1", "1.000", "", "0: 1.000"] and Seeds({}).cells(3, {}) == [""] * 4
