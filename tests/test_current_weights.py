"""Backward passes at today's weights, against an oracle that goes back layer by layer."""


import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from small import CLASSES, CurrentPart, batches, close, cross_entropy, fed, leaves, parts, pipeline, recipe
from stages_of_layers import LAYERS_OF_TWO, ORDERS, ROUNDING, Normed, Two, affine, layered
from test_engines import run

from fdg_jax import layers


@pytest.mark.parametrize("order", [*ORDERS, "ddg"])
def test_current_weights_are_their_own_oracle(order):
    """Of FDG in both orders and of DDG."""
    K, data = 3, batches(12)
    stages = [Two(CLASSES if k == K else 12) for k in range(1, K + 1)]
    asked = {"method": "ddg"} if order == "ddg" else {"order": order, "beta": 0.7}
    ours = pipeline(K, data[0], stages=stages, weights="current", **asked)
    start = layered(jax.device_get(ours.params))
    fed(ours, data)
    beta = asked.get("beta", 1.0)
    truth, losses = oracle.current([LAYERS_OF_TWO] * K, cross_entropy, recipe(), start, data, order, beta)
    close(layered(ours.params), truth, **ROUNDING)
    np.testing.assert_allclose([m.loss for m in ours.losses(wait=True)], losses, **ROUNDING)


def test_current_and_stashed_weights_differ_where_there_is_staleness():
    data = batches(12)
    ways = [{"weights": weights} for weights in ("stashed", "current")]
    same = [run(1, data, stages=parts(1, CurrentPart), **way)[0].parameters_sha256() for way in ways]
    other = [leaves(run(3, data, stages=parts(3, CurrentPart), **way)[0].params) for way in ways]
    assert same[0] == same[1]
    assert max(np.abs(a - b).max() for a, b in zip(*other, strict=True)) > 1e-4


def test_current_weights_with_batch_norm_are_their_own_oracle():
    data, K, order = batches(12), 3, "backward-first"
    stages = [Normed(CLASSES if k == K else 12) for k in range(1, K + 1)]
    ours = pipeline(K, data[0], stages=stages, weights="current", order=order, beta=0.7)

    def split(params):
        return [params["affine"]["Dense_0"], params["norm"]]

    start = [split(v["params"]) for v in jax.device_get(ours.params)]
    fed(ours, data)

    def norm(p, x):
        return (x - x.mean(0)) / jnp.sqrt(x.var(0) + layers.EPSILON) * p["scale"] + p["bias"]

    truth, _ = oracle.current([[affine, norm]] * K, cross_entropy, recipe(), start, data, order, beta=0.7)
    # The batch norm's own backward pass sums in another order.
    close([split(v["params"]) for v in ours.params], truth, rtol=0, atol=1e-5)
