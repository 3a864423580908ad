"""The statistics of a few seeds, against numbers computed by hand and by integration, and the verdicts made of them."""

import math

import pytest

from experiments.harness.intervals import Seeds, interval
from experiments.tuning import tokens, verdicts
from experiments.tuning.verdicts import FAILS, HOLDS, UNDECIDED, Scale

SCALE = Scale("points", 0.5, 2)


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


# Verdicts on the corrections


def of(mean, seeds=3, shift=0, noise=1.0):
    return Seeds({seed: mean + noise * (0.0, 0.1, -0.1)[(seed + shift) % 3] for seed in range(seeds)})


def test_an_arm_errs_less_or_not_and_is_level_with_bp_or_behind_it():
    for arm, noise, less, none in (
        (28.0, 1.0, HOLDS, FAILS), (30.0, 0.1, FAILS, HOLDS), (32.0, 1.0, FAILS, HOLDS),
        (29.8, 0.1, HOLDS, HOLDS),  # surely less, and surely by less than half a point
        (29.5, 5.0, UNDECIDED, UNDECIDED),
    ):  # fmt: skip
        stale, found = of(30.0, noise=noise), of(arm, shift=1, noise=noise)
        assert verdicts.less(found, stale, SCALE).word == less
        assert verdicts.no_gain(found, stale, SCALE).word == none
    for arm, level, worse in ((20.5, HOLDS, HOLDS), (22.0, FAILS, HOLDS), (19.0, HOLDS, FAILS)):
        assert verdicts.level(of(arm, shift=1), of(20.0), 1.0, SCALE).word == level
        assert verdicts.worse(of(arm, shift=1), of(20.0), SCALE).word == worse
    for times, word in (((1.0, 1.1, 0.9), HOLDS), ((1.2, None, 1.3), FAILS), ((1.0, 1.2, 1.0), UNDECIDED)):
        assert verdicts.within(dict(enumerate(times)), 1.1, of(1.0), of(1.0)).word == word


def test_two_seeds_decide_nothing_and_an_arm_that_diverges_more_often_does_not_hold():
    few, short = (UNDECIDED, "2 of at least 3 seeds can be compared."), of(1, 2)
    assert verdicts.less(short, of(9), SCALE) == verdicts.worse(of(9, 2), of(1), SCALE) == few
    assert verdicts.level(short, of(9), 1.0, SCALE) == verdicts.within({0: 1.0, 1: 1.0}, 1.1, short, of(9)) == few
    lost, diverged = Seeds({0: 1.0, 1: 1.0}, (2,)), (FAILS, "1 runs of this arm have diverged.")
    assert verdicts.less(lost, of(30.0), SCALE) == verdicts.no_gain(lost, of(30.0), SCALE) == diverged
    assert verdicts.within({0: 1.0, 1: 1.0, 2: None}, 1.1, lost, of(30.0)) == diverged
    assert verdicts.level(lost, lost, 1.0, SCALE).word == UNDECIDED


def test_the_gap_that_is_closed_is_of_the_seeds_that_all_have_and_may_not_be_chance():
    shared = Seeds({0: 28.0, 1: 28.0, 2: 28.0, 3: 99.0}), of(34, noise=0), Seeds({0: 22.0, 1: 22.0, 2: 22.0, 4: 9.0})
    assert verdicts.gap_closed(*shared) == 0.5
    assert verdicts.gap_closed(Seeds({0: 28.0}), of(34), of(22)) is None  # one seed says nothing of the gap's spread
    assert verdicts.gap_closed(of(30), of(20), of(25)) is None  # without a gap there is nothing to close
    assert verdicts.gap_closed(of(19), of(20.05), of(20, shift=1)) is None  # an interval of the gap has 0
    assert verdicts.gap_closed(Seeds({0: 1.0, 1: 1.0}, (2,)), of(34), of(22)) is None


# Tokens


def test_tokens_to_a_loss_are_found_between_two_tests():
    tests = [{"step": step, "test_loss": loss} for step, loss in ((500, 3.0), (2000, 2.0), (2500, 2.1), (3000, 1.9))]
    assert tokens.steps_to(tests, 2.5) == pytest.approx(1000)  # half of the way from log 500 to log 2000
    assert tokens.steps_to(tests, 2.0) == pytest.approx(2000)
    assert (tokens.steps_to(tests, 3.5), tokens.steps_to(tests, 1.8)) == (500, None)
    assert tokens.steps_to([{"step": 250, "test_loss": None}, *tests], 2.5) == pytest.approx(1000)
