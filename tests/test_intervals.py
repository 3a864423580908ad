"""The statistics of a few seeds, against numbers computed by hand and by integration."""

import math

import pytest

from experiments import table3
from experiments.harness import paper
from experiments.harness.intervals import QUANTILES, carries, interval, of_one_seed, paired


@pytest.mark.parametrize("freedom", QUANTILES)
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
    assert paired({3: 5.0, 0: 2.0, 1: 9.0}, {0: 1.5, 3: 7.0, 2: 1.0}) == {0: 0.5, 3: -2.0}
    assert list(paired({3: 5.0, 0: 2.0}, {0: 1.5, 3: 7.0})) == [0, 3]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], ""),
        ([1.0], "A minus B: +1.00 points with one seed (n = 1), so the spread over seeds is unknown"),
        ([1.0, 2.0, 3.0], "larger than the seeds' spread (standard deviation over the seeds 1.00, n = 3)"),
        ([1.0, 2.0, 3.0], "the 95% interval, -0.48 to +4.48, includes 0."),
        ([-1.0, 2.0, 0.0], "not larger than the seeds' spread"),
        ([-1.0, -1.1, -1.2], "A minus B: -1.10 points, larger than the seeds' spread"),
        ([-1.0, -1.1, -1.2], "excludes 0."),
    ],
)
def test_how_far_a_result_carries_is_one_sentence(values, said):
    sentence = carries("A minus B", interval(values))
    assert said in sentence and sentence.count(". ") == 0


def test_a_table_of_one_seed_says_that_nothing_carries_over():
    assert of_one_seed({"a": 1.0, "b": -0.5, "c": 0.0}, "BP") == (
        "**How far it carries:** differences to BP are -0.50 (b) to +1.00 (a) points, each of one seed (n = 1), "
        "so the spread over seeds is unknown and nothing carries over."
    )
    assert of_one_seed({}, "BP") == ""


def test_a_table_of_the_paper_takes_differences_to_bp_by_seed():
    cells = [cell for cell in table3.CELLS if cell.network == "ResNet-20"]
    bp, stale, _ = cells
    errors = {(bp, 0): 30.0, (bp, 1): 31.0, (stale, 0): 32.0, (stale, 1): 34.0, (stale, 2): 99.0}
    lines = {paper.name(cell, seed): {"test_error_percent": error} for (cell, seed), error in errors.items()}
    said = paper.how_far(cells, lines)  # type: ignore[arg-type]
    assert "ResNet-20, FDG with K = 2, beta = 1, minus BP: +2.50 points" in said and "n = 2" in said
    assert "beta = 0.2" not in said and paper.how_far(cells, {}) == ""
