"""The stability page: eigenvalues against the exact limit and against training."""


import pytest

from experiments import stability
from experiments.harness.run_table import Run
from experiments.limits import eigenvalues
from fdg_jax.corrections.anticipate import coefficient


def test_plain_sgd_has_the_exact_limit_and_the_rate_over_the_staleness_nearly_one_for_all():
    for tau, of_rate in {1: 1.00, 2: 1.24, 3: 1.34, 7: 1.46, 15: 1.52}.items():  # computed elsewhere, to two digits
        assert eigenvalues.limit(0.0, 0.0, tau) == pytest.approx(eigenvalues.exact_limit(tau), rel=1e-9)
        assert tau * eigenvalues.exact_limit(tau) == pytest.approx(of_rate, abs=5e-3)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "m", "tau"),
    [("none", 0.9, 1), ("spike", 0.9, 3)],
)
def test_training_finds_the_limit_of_the_eigenvalues(arm, m, tau):
    found = stability.measure(Run("", {"arm": arm, "momentum": m, "staleness": tau}))
    assert found["measured"] == pytest.approx(found["eigenvalues"], rel=0.005)  # the curvatures are 0.4% apart
