"""The opening lines of a run."""

from types import SimpleNamespace

import pytest

from fdg_jax.models import paper_split
from fdg_jax.training.opening import whose_split


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
    has_one = paper_split(model, K) is not None
    partition = SimpleNamespace(name=split, unit="FLOPs", has_paper_split=has_one)
    job = SimpleNamespace(partition=partition, options=SimpleNamespace(model=model, K=K))
    assert whose_split(job) == (f" ({says})" if says else "")  # type: ignore[arg-type]
