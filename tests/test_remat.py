"""A stage that computes its activations again trains as one that remembers them, and remembers its inputs only."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import CLASSES, CurrentPart, Part, batches, close, fed, parts, pipeline
from stages_of_layers import ROUNDING, Dropped

from fdg_jax.checks.plan import recomputing
from fdg_jax.errors import BadInput


class Spread(nn.Module):
    """Dense, batch norm and dropout: what must not change, or move twice, when it is computed twice."""

    width: int

    @nn.compact
    def __call__(self, x, train: bool):
        return Dropped(self.width)(Part(12)(x, train), train)


def stages(K):
    return [Spread(CLASSES if k == K else 12) for k in range(1, K + 1)]


def trained(K, data, **options):
    ours = pipeline(K, data[0], stages=stages(K), **options)
    fed(ours, data)
    return ours


def same_training(one, two):
    """Weights, and batch statistics, of two drained pipelines. The second forward pass is fused into the backward pass
    and XLA rounds it in another order: as far off as the engines are from the oracle."""
    close(one.params, two.params, **ROUNDING)
    np.testing.assert_allclose(*([m.loss for m in each.losses(wait=True)] for each in (one, two)), **ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"beta": 0.5}, {"engine": "scan"}, {"method": "data_parallel"}, {"method": "fr"}])
def test_training_is_the_same_with_and_without(options):
    data = batches(6)
    same_training(trained(2, data, **options), trained(2, data, **options, remat="all"))


@pytest.mark.slow
def test_a_stash_shrinks_to_its_input():
    data = batches(4)
    ours = pipeline(2, data[0], stages=[Spread(12), Part(CLASSES)], remat=(1,))
    for batch in data:
        ours.step(batch)
    assert len(ours.engine.stages[1].stashes) == 2
    for stash, (x, _) in zip(ours.engine.stages[1].stashes, data[2:], strict=True):
        np.testing.assert_array_equal(stash.x, x)
        assert {leaf.dtype for leaf in jax.tree.leaves(stash.closure)} <= {jnp.dtype(jnp.uint32)}  # the random key


def test_stages_are_named_by_number_or_all_at_once():
    for value, found in {"none": (), "all": (1, 2, 3), "1, 3": (1, 3), (2,): (2,)}.items():
        assert recomputing(value, 3) == frozenset(found)
    for value, says in {"some": "neither none, all nor stage numbers", "1,4": "no stage k=4. With K=3 use"}.items():
        with pytest.raises(BadInput, match=says):
            recomputing(value, 3)


def test_activations_are_not_computed_again_at_other_weights():
    data = batches(1)
    with pytest.raises(BadInput, match=r"stage k=1 again: with weights=current .* Leave one of the two out"):
        pipeline(3, data[0], remat="1", weights="current")
    with pytest.raises(BadInput, match="with method=fa"):
        pipeline(3, data[0], remat="all", method="fa")
    # Stage K has no staleness, so no other weights.
    pipeline(3, data[0], stages=parts(3, CurrentPart), remat="3", weights="current")
