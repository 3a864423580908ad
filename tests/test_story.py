"""The opening lines of a run."""

from types import SimpleNamespace

import pytest

from fdg_jax.training.opening import whose


@pytest.mark.parametrize(
    ("split", "model", "K", "says"),
    [
        ("paper", "resnet1202", 5, "as in the authors' code"),
        (
            "balanced",
            "resnet20",
            4,
            "the authors' code has no split of resnet20 for K=4, so stages are of about equal FLOPs",
        ),
        ("balanced", "resnet20", 2, ""),  # asked for, although the authors have one
        ("3,7", "resnet20", 3, ""),
    ],
)
def test_a_run_says_whether_the_authors_cut_the_network_so(split, model, K, says):
    job = SimpleNamespace(split=split, cost="FLOPs", options=SimpleNamespace(model=model, K=K))
    assert whose(job) == (f" ({says})" if says else "")  # type: ignore[arg-type]
