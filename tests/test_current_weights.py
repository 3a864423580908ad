"""Backward passes at today's weights: an oracle goes back layer by layer; layers that keep old weights are refused."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from small import CLASSES, CurrentPart, batches, close, cross_entropy, fed, jit, pipeline, recipe
from stages_of_layers import LAYERS_OF_TWO, ORDERS, ROUNDING, Normed, Two, affine, layered
from test_api import DATA, refused

import fdg_jax
from fdg_jax import layers
from fdg_jax.stages.functions import functions, init_variables, split_variables


@pytest.mark.slow
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


@pytest.mark.slow
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


class Cast(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.tanh(nn.Dense(12, dtype=jnp.bfloat16)(x)).astype(jnp.float32)


@pytest.mark.slow
def test_current_weights_are_refused_where_a_module_keeps_cast_ones():
    stages = [nn.Sequential([Cast(), Cast()]), nn.Dense(5)]
    refused(r"stage k=1 \(Sequential\) keeps bfloat16\[8, 12\], which is computed", stages=stages, weights="current")
    fdg_jax.Pipeline(stages, cross_entropy, recipe()).init(jax.random.PRNGKey(0), DATA[0])


LONG = partial(pytest.param, marks=pytest.mark.slow)


class Scaled(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x * self.param("scale", nn.initializers.ones, (x.shape[-1],))


class FlaxNorm(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.BatchNorm(use_running_average=not train)(x)


@pytest.mark.parametrize("layer", [
    LONG(layers.BatchNorm()), nn.PReLU(), LONG(FlaxNorm()), LONG(nn.WeightNorm(nn.Dense(8))), Scaled(),
], ids=lambda layer: type(layer).__name__)  # fmt: skip
def test_current_weights_are_refused_for_just_the_layers_that_would_go_back_through_old_ones(layer):
    """A closure of the old weights that is given new ones: of a layer that is let pass, dx is what the new weights
    alone would give. Of one that is refused it is not, which is why."""
    x = DATA[0][0]
    params, extra = split_variables(init_variables(layer, jax.random.key(0), x))
    new = jax.tree.map(lambda p: 2 * p + 1, params)
    made = functions(layer)
    (messages, _, old_closure), (_, _, new_closure) = map(jit(made.forward), (params, new), (extra, extra), (x, x))
    dy = jnp.cos(jnp.arange(messages["x"].size, dtype=jnp.float32)).reshape(messages["x"].shape)
    backward = jit(made.backward)
    found, exact = (backward(closure, new, x, dy)[1] for closure in (old_closure, new_closure))
    stages = [layer, nn.Dense(5)]
    fdg_jax.Pipeline(stages, cross_entropy, recipe()).init(jax.random.key(0), DATA[0])  # stashed: always welcome
    if isinstance(layer, layers.BatchNorm | nn.PReLU):
        np.testing.assert_array_equal(found, exact)
        fdg_jax.Pipeline(stages, cross_entropy, recipe(), weights="current").init(jax.random.key(0), DATA[0])
    else:
        assert np.abs(found - exact).max() > 0.1
        says = r"keeps float32\[1, 8\], which .* its weights \['.*'\] alone\. .* fdg_jax.layers.BatchNorm"
        says = r"keeps float32\[1, 8\], which is computed" if isinstance(layer, nn.WeightNorm) else says
        refused(rf"stage k=1 \(\w+\) {says}", stages=stages, weights="current")


class Branching(nn.Module):
    """Which of its cast kernels it keeps depends on the inputs."""

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", nn.initializers.normal(), (8, 8))
        return jax.lax.cond(x.sum() > 0, lambda x: x @ (2 * kernel), lambda x: x @ (3 * kernel), x)


class Looping(nn.Module):
    """Multiplies by a vector of weights in every step of a loop."""

    @nn.compact
    def __call__(self, x):
        scan = nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return scan()(x, None)[0]


class Step(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x * self.param("scale", nn.initializers.ones, (8,)), None


def test_what_is_kept_is_found_in_branches_and_loops_too():
    refused(r"keeps float32\[8, 8\], .*\['kernel'\]", stages=[Branching(), nn.Dense(5)], weights="current")
    refused(r"keeps float32\[3, 1, 8\], .* alone", stages=[Looping(), nn.Dense(5)], weights="current")


class Everything(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.gelu(CurrentPart(8)(x, train))
        return nn.Dropout(0.5, deterministic=not train)(x * nn.sigmoid(nn.Dense(8)(x)))


@pytest.mark.slow
def test_current_weights_take_activations_gates_and_dropout():
    stages = [Everything(), nn.Dense(5)]
    fdg_jax.Pipeline(stages, cross_entropy, recipe(), weights="current").init(jax.random.key(0), DATA[0])
