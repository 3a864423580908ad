"""When a published claim holds, by the numbers of an arm and of those it is held against."""

import pytest
from correction_lines import NOISE

from experiments.tuning import verdicts
from experiments.tuning.verdicts import FAILS, HOLDS, UNDECIDED, Scale, Values

SCALE = Scale("points", 0.5, 2)


def of(mean, seeds=3, shift=0, noise=1.0):
    return Values({seed: mean + noise * NOISE[(seed + shift) % 3] for seed in range(seeds)})


@pytest.mark.parametrize(
    ("arm", "noise", "less", "none"),
    [
        (28.0, 1.0, HOLDS, FAILS), (30.0, 0.1, FAILS, HOLDS), (32.0, 1.0, FAILS, HOLDS),
        (29.8, 0.1, HOLDS, HOLDS),  # surely less, and surely by less than half a point
        (29.5, 5.0, UNDECIDED, UNDECIDED),
    ],
)  # fmt: skip
def test_an_arm_errs_less_or_not(arm, noise, less, none):
    stale, found = of(30.0, noise=noise), of(arm, shift=1, noise=noise)
    assert verdicts.less(found, stale, SCALE).word == less
    assert verdicts.no_gain(found, stale, SCALE).word == none


def test_two_seeds_decide_nothing():
    few = "2 of at least 3 seeds can be compared."
    assert verdicts.less(of(1, 2), of(9), SCALE) == verdicts.worse(of(9, 2), of(1), SCALE) == (UNDECIDED, few)
    assert verdicts.level(of(1, 2), of(9), 1.0, SCALE) == (UNDECIDED, few)
    assert verdicts.within({0: 1.0, 1: 1.0}, 1.1, of(1, 2), of(9)) == (UNDECIDED, few)


@pytest.mark.parametrize(("arm", "level", "worse"), [(20.5, HOLDS, HOLDS), (22.0, FAILS, HOLDS), (19.0, HOLDS, FAILS)])
def test_an_arm_is_level_with_bp_or_behind_it(arm, level, worse):
    assert verdicts.level(of(arm, shift=1), of(20.0), 1.0, SCALE).word == level
    assert verdicts.worse(of(arm, shift=1), of(20.0), SCALE).word == worse


def test_an_arm_that_diverges_more_often_does_not_hold():
    lost = Values({0: 1.0, 1: 1.0}, (2,))
    diverged = (FAILS, "1 of its runs have diverged.")
    assert verdicts.less(lost, of(30.0), SCALE) == verdicts.no_gain(lost, of(30.0), SCALE) == diverged
    assert verdicts.within({0: 1.0, 1: 1.0, 2: None}, 1.1, lost, of(30.0)) == diverged
    assert verdicts.level(lost, lost, 1.0, SCALE).word == UNDECIDED


@pytest.mark.parametrize(
    ("times", "word"),
    [((1.0, 1.1, 0.9), HOLDS), ((1.2, None, 1.3), FAILS), ((1.0, 1.2, 1.0), UNDECIDED)],
)
def test_all_seeds_reach_bps_loss_in_time_or_none_does(times, word):
    assert verdicts.within(dict(enumerate(times)), 1.1, of(1.0), of(1.0)).word == word


def test_the_gap_that_is_closed_is_of_the_seeds_that_all_have_and_may_not_be_chance():
    shared = Values({0: 28.0, 1: 28.0, 2: 28.0, 3: 99.0}), of(34, noise=0), Values({0: 22.0, 1: 22.0, 2: 22.0, 4: 9.0})
    assert verdicts.gap_closed(*shared) == 0.5
    assert verdicts.gap_closed(Values({0: 28.0}), of(34), of(22)) is None  # one seed says nothing of the gap's spread
    assert verdicts.gap_closed(of(30), of(20), of(25)) is None  # without a gap there is nothing to close
    assert verdicts.gap_closed(of(19), of(20.05), of(20, shift=1)) is None  # an interval of the gap has 0
    assert verdicts.gap_closed(Values({0: 1.0, 1: 1.0}, (2,)), of(34), of(22)) is None
