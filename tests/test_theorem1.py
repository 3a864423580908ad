"""Theorem 1's bounds: their limits, that they hold where they should and break where they should, and by whom."""

from itertools import pairwise, product

import numpy as np
import pytest

from experiments import theorem1
from experiments.limits import eigenvalues
from experiments.theorem import decoupled, quadratic
from experiments.theorem.theorem_bounds import READINGS, bound, z2
from fdg_jax.corrections.anticipate import coefficient

T = 24


def full(K):
    """The first step of a full pipeline."""
    return 2 * (K - 1)


def exact(K, beta, gamma, scale=1.0):
    """(change, {reading: bound}) of the grid's problem, at every step; scale: of Z_2."""
    problem, rates = quadratic.coupled(K), [gamma] * T
    run = problem.expected(beta, rates)
    return run, {name: bound(name, beta, rates, run.squares, scale * problem.L * run.M[-1]) for name in READINGS}


# The constants


@pytest.mark.parametrize("K", [1, 5])
def test_the_printed_constant_is_the_papers_formula_and_has_a_limit_at_beta_1(K):
    for beta in (0.5, 1 - 1e-7):
        late = sum(beta ** (3 * (K - k)) * 2 * (K - k) for k in range(1, K + 1))
        assert z2("printed", K, beta, [1.0] * 20, 19) == pytest.approx((beta**K - 1) / (beta - 1) + late, rel=1e-8)
    for reading in READINGS:  # the derivatives are at most some hundreds, the step is 1e-7
        near = z2(reading, K, 1 - 1e-7, [1.0] * 20, 19)
        assert z2(reading, K, 1.0, [1.0] * 20, 19) == pytest.approx(near, rel=1e-4)
    assert z2("printed", K, 1.0, [1.0] * 20, 19) == K + K * (K - 1)
    assert z2("repaired", K, 1.0, [1.0] * 20, 19) == K + sum((2 * c) ** 2 for c in range(K))
    assert z2("network", K, 1.0, [1.0] * 20, 19) == pytest.approx(K / 2 + 2 * K**0.5 * K * (K - 1))


def test_only_the_corrected_constants_grow_where_the_rate_falls():
    fallen = [1.0] * 4 + [0.1]
    for reading, constant, after in (("printed", 4, 4), ("repaired", 6, 402), ("network", 1 + 2**2.5, 1 + 2**0.5 * 40)):
        assert z2(reading, 2, 1.0, [0.1] * 5, 4) == pytest.approx(constant)
        assert z2(reading, 2, 1.0, fallen, 4) == pytest.approx(after)


# Expectations


def test_the_expected_loss_is_the_mean_over_all_sequences_of_samples():
    problem, steps = quadratic.coupled(2, N=3), 4
    drawn = np.stack(np.meshgrid(*[range(3)] * steps)).reshape(steps, -1)  # all 81
    losses = [problem.losses(problem.sampled(0.5, [0.4] * steps, sequence)) for sequence in drawn.T]
    change = np.diff(np.mean(losses, 0))
    np.testing.assert_allclose(problem.expected(0.5, [0.4] * steps).change, change, rtol=1e-10)  # float64, ~30 sums


def test_L_and_M_are_what_the_assumptions_say():
    problem = quadratic.coupled(3)
    vectors = np.linalg.eigh(problem.H)[1]
    assert np.linalg.norm(problem.H @ vectors[:, -1]) == pytest.approx(problem.L) == 1
    gradients = (problem.inputs - problem.targets + problem.A @ problem.start.ravel()) @ problem.A  # of all batches 0
    assert problem.expected(0.5, [0.1]).M[0] == pytest.approx((gradients**2).sum(-1).mean())


# The bounds


def test_the_corrected_bound_holds_at_every_step():
    for K, beta, gamma in product((1, 2, 3, 4), (1.0, 0.8, 0.5, 0.2), (0.01, 0.1, 0.5, 1.0)):
        run, bounds = exact(K, beta, gamma)
        assert (run.change <= bounds["network"]).all()
        assert (run.change <= bounds["printed"])[2 * (K - 1) :].all()  # from the first step of a full pipeline on


def test_the_corrected_bound_is_violated_when_its_constant_is_divided():
    """By 3 for K = 1, where it is sharp up to the share of the noise in M; by 100 for K = 4."""
    for K, divisor in ((1, 3), (4, 100)):
        run, bounds = exact(K, 1.0, 1.0, scale=1 / divisor)
        assert (run.change > bounds["network"]).any()


@pytest.mark.slow
def test_both_corrected_bounds_hold_for_independent_modules_where_the_printed_one_breaks():
    filling, falls = (theorem1.measure(run) for run in (theorem1.FILLING, theorem1.FALLS))
    assert filling["engine"][:2] == [0, 0] and max(filling["printed"][:2]) < 0
    # The rate falls at t = 4, when the pipeline has been full for two steps; the paper's condition promises a fall.
    assert falls["engine"][4] == pytest.approx(0.105, rel=1e-5) and falls["printed"][4] < 0  # 1.1^2/2 - 1/2; float32
    always = theorem1.measure(theorem1.FALLS_ALWAYS)
    rates = theorem1.FALLS_ALWAYS.flags["rates"]
    assert all(later < earlier for earlier, later in pairwise(rates)) and rates[4] == 0.1
    assert always["engine"][4] == pytest.approx(0.1045, rel=1e-5)
    assert always["printed"][4] == pytest.approx(-0.00152, abs=1e-5)
    for line in (filling, falls, always):
        np.testing.assert_allclose(line["engine"], line["exact"], atol=1e-6)  # float32, numbers of about 1
        assert line["staleness"] == [2, 0]
        for reading in ("repaired", "network"):
            assert all(change <= most for change, most in zip(line["engine"], line[reading], strict=True))


# The engines


@pytest.mark.parametrize("K", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_engine_makes_the_theorems_update(K):
    problem, runs, steps = quadratic.coupled(K), 3, 12
    rates = np.array([0.1, 0.3, 1.0])
    drawn = np.random.default_rng(1).integers(0, 16, (steps, runs))
    theta, staleness = decoupled.trained(problem, 0.8, [rates] * steps, drawn)
    assert staleness == [2 * (K - k) for k in range(1, K + 1)]
    for i, rate in enumerate(rates):
        # float32 against float64: some ten additions of numbers of about 1
        np.testing.assert_allclose(theta[:, i], problem.sampled(0.8, [rate] * steps, drawn[:, i]), atol=1e-5)


# The limits of stability


@pytest.mark.slow
def test_plain_sgd_has_the_exact_limit_and_the_rate_over_the_staleness_nearly_one_for_all():
    for tau, of_rate in {1: 1.00, 2: 1.24, 3: 1.34, 7: 1.46, 15: 1.52}.items():  # computed elsewhere, to two digits
        assert eigenvalues.limit(0.0, 0.0, tau) == pytest.approx(eigenvalues.exact_limit(tau), rel=1e-9)
        assert tau * eigenvalues.exact_limit(tau) == pytest.approx(of_rate, abs=5e-3)


@pytest.mark.slow
def test_the_limits_are_those_of_a_table_computed_elsewhere():
    """By a search in steps: where the limit is exactly 1 it found 0.995."""
    kinds = ("last", "linear", "spike", "nesterov")
    for m, tau, limits in (
        (0.0, 1, (0.995, 0.615, 0.615, 0.995, 0.995)), (0.0, 7, (0.209, 0.226, 0.124, 0.209, 0.209)),
        (0.9, 1, (1.00, 2.69, 2.69, 2.52, 2.52)), (0.9, 7, (0.157, 0.178, 0.231, 0.242, 0.176)),
        (0.99, 15, (0.068, 0.073, 0.256, 0.238, 0.0725)),
    ):  # fmt: skip
        cs = (0.0, *(coefficient(kind, tau, m) for kind in kinds))
        assert [eigenvalues.limit(m, c, tau) / (1 - m) for c in cs] == pytest.approx(limits, rel=0.01)
