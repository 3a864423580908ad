"""The stability page: eigenvalues against the exact limit and against training."""

import json

import pytest

from experiments import stability
from experiments.harness import result_files
from experiments.harness.run_table import RESULTS, Run
from experiments.limits import eigenvalues
from fdg_jax.corrections.anticipate import coefficient

committed = pytest.mark.skipif(not (RESULTS / "stability.jsonl").is_file(), reason="not measured yet")


@pytest.mark.parametrize("tau", [0, 1, 2, 7, 15])
def test_plain_sgd_has_the_exact_limit_and_the_rate_over_the_staleness_nearly_one_for_all(tau):
    assert eigenvalues.limit(0.0, 0.0, tau) == pytest.approx(eigenvalues.exact_limit(tau), rel=1e-9)
    if tau:  # tau times it: 1, 1.24, 1.46, 1.52
        assert 0.999 < tau * eigenvalues.exact_limit(tau) < 1.58


@pytest.mark.parametrize(("m", "tau", "limits"), [(0.9, 3, (0.348, 0.479, 0.723, 0.693, 0.464))])
def test_the_limits_are_those_of_the_specification(m, tau, limits):
    """To be read from a table that was computed elsewhere, with three digits."""
    kinds = ("last", "linear", "spike", "nesterov")
    found = [eigenvalues.limit(m, c, tau) / (1 - m) for c in (0.0, *(coefficient(kind, tau, m) for kind in kinds))]
    assert found == pytest.approx(limits, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["none", "spike"])
def test_training_finds_the_limit_of_the_eigenvalues(arm):
    found = stability.measure(Run("", {"arm": arm, "momentum": 0.9, "staleness": 1}))
    assert found["measured"] == pytest.approx(found["eigenvalues"], rel=0.005)  # the curvatures are 0.4% apart


@committed
def test_the_committed_page_shows_that_training_agrees_with_the_eigenvalues_everywhere():
    lines = result_files.read(stability.TABLE, RESULTS)
    assert list(lines) == [run.name for run in stability.GRID]
    page = (RESULTS / "stability.md").read_text()
    assert page == result_files.page(stability.TABLE, lines), "run `python -m experiments.stability render`"
    for name, line in lines.items():
        # Half the distance of two curvatures, and what 3,000 updates cannot tell from a limit.
        assert line["measured"] == pytest.approx(line["eigenvalues"], rel=0.01), (name, json.dumps(line))
        assert line["exact"] is None or line["eigenvalues"] == pytest.approx(line["exact"], rel=1e-9)
