"""The stability page: eigenvalues against the exact limit and against training."""

import json

import pytest

from experiments import stability
from experiments.harness import result_files
from experiments.harness.run_table import RESULTS, Run
from experiments.limits import eigenvalues, measured
from fdg_jax.corrections.anticipate import coefficient

committed = pytest.mark.skipif(not (RESULTS / "stability.jsonl").is_file(), reason="not measured yet")


@pytest.mark.parametrize("tau", [0, 1, 2, 3, 7, 15])
def test_plain_sgd_has_the_exact_limit_and_the_rate_over_the_staleness_nearly_one_for_all(tau):
    assert eigenvalues.limit(0.0, 0.0, tau) == pytest.approx(eigenvalues.exact_limit(tau), rel=1e-9)
    of_rate = {1: 1.00, 2: 1.24, 3: 1.34, 7: 1.46, 15: 1.52}  # computed elsewhere, to two digits
    assert tau == 0 or tau * eigenvalues.exact_limit(tau) == pytest.approx(of_rate[tau], abs=5e-3)


@pytest.mark.parametrize(
    ("m", "tau", "limits"),
    [
        (0.0, 1, (0.995, 0.615, 0.615, 0.995, 0.995)), (0.0, 7, (0.209, 0.226, 0.124, 0.209, 0.209)),
        (0.9, 1, (1.00, 2.69, 2.69, 2.52, 2.52)), (0.9, 3, (0.347, 0.478, 0.718, 0.690, 0.463)),
        (0.9, 7, (0.157, 0.178, 0.231, 0.242, 0.176)), (0.9, 15, (0.079, 0.084, 0.084, 0.102, 0.083)),
        (0.99, 1, (1.00, 9.51, 9.51, 9.13, 9.13)), (0.99, 7, (0.144, 0.167, 0.774, 0.724, 0.167)),
        (0.99, 15, (0.068, 0.073, 0.256, 0.238, 0.0725)),
    ],
)  # fmt: skip
def test_the_limits_are_those_of_a_table_computed_elsewhere(m, tau, limits):
    """By a search in steps: where the limit is exactly 1 it found 0.995."""
    kinds = ("last", "linear", "spike", "nesterov")
    found = [eigenvalues.limit(m, c, tau) / (1 - m) for c in (0.0, *(coefficient(kind, tau, m) for kind in kinds))]
    assert found == pytest.approx(limits, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "m", "tau"),
    [("none", 0.9, 1), ("spike", 0.9, 1), ("spike", 0.9, 3), ("linear", 0.9, 3), ("rate", 0.0, 3)],
)
def test_training_finds_the_limit_of_the_eigenvalues(arm, m, tau):
    found = stability.measure(Run("", {"arm": arm, "momentum": m, "staleness": tau}))
    assert found["measured"] == pytest.approx(found["eigenvalues"], rel=0.005)  # the curvatures are 0.4% apart


@pytest.mark.slow
def test_a_limit_above_the_curvatures_that_are_tried_is_looked_for_above():
    found = measured.limit(0.0, 1, "none", {}, points=200, steps=600, low=1e-4)  # at first up to 0.2
    assert found == pytest.approx(1.0, rel=0.04)  # two curvatures are 3.9% apart


@committed
def test_the_committed_results_show_that_training_agrees_with_the_eigenvalues_everywhere():
    lines = result_files.read(stability.TABLE, RESULTS)
    assert list(lines) == [run.name for run in stability.GRID]
    for name, line in lines.items():
        # Half the distance of two curvatures, and what 3,000 updates cannot tell from a limit.
        assert line["measured"] == pytest.approx(line["eigenvalues"], rel=0.01), (name, json.dumps(line))
        assert line["exact"] is None or line["eigenvalues"] == pytest.approx(line["exact"], rel=1e-9)
