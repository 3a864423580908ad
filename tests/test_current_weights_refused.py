"""Today's weights are refused for the layers whose closures would go back through yesterday's."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import CurrentPart, cross_entropy, jit, recipe
from test_api import DATA, refused

import fdg_jax
from fdg_jax import layers
from fdg_jax.stage.functions import functions, init_variables, split_variables


class Cast(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.tanh(nn.Dense(12, dtype=jnp.bfloat16)(x)).astype(jnp.float32)


def test_current_weights_are_refused_where_a_module_keeps_cast_ones():
    stages = [nn.Sequential([Cast(), Cast()]), nn.Dense(5)]
    refused(r"stage k=1 \(Sequential\) keeps bfloat16\[8, 12\], made of its weights", stages=stages, weights="current")
    fdg_jax.Pipeline(stages, cross_entropy, recipe()).init(jax.random.PRNGKey(0), DATA[0])


class Scaled(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x * self.param("scale", nn.initializers.ones, (x.shape[-1],))


class FlaxNorm(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.BatchNorm(use_running_average=not train)(x)


@pytest.mark.parametrize("layer", [layers.BatchNorm(), nn.PReLU(), FlaxNorm(), nn.WeightNorm(nn.Dense(8)), Scaled()],
                         ids=lambda layer: type(layer).__name__)  # fmt: skip
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
        says = r"keeps float32\[1, 8\], made of its weights \['.*'\] alone, .* fdg_jax.layers.BatchNorm for a batch"
        says = r"keeps float32\[8, 8\], made of its weights" if isinstance(layer, nn.WeightNorm) else says
        refused(rf"stage k=1 \(\w+\) {says}", stages=stages, weights="current")


class Everything(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.gelu(CurrentPart(8)(x, train))
        return nn.Dropout(0.5, deterministic=not train)(x * nn.sigmoid(nn.Dense(8)(x)))


def test_current_weights_take_activations_gates_and_dropout():
    stages = [Everything(), nn.Dense(5)]
    fdg_jax.Pipeline(stages, cross_entropy, recipe(), weights="current").init(jax.random.key(0), DATA[0])
