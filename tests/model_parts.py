"""Shapes of whole networks, and convolutions as XLA has them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fdg_jax import models
from fdg_jax.split import Stage
from fdg_jax.stages.switches import arguments


def shapes(name: str, classes: int = 10, example=(2, 32, 32, 3)):
    """(the output's shape, the variables' shapes) of a whole network, without running or initialising it."""
    network = Stage(tuple(models.blocks(name, classes)))
    x = jax.ShapeDtypeStruct(example, jnp.float32)
    return jax.eval_shape(lambda key, x: network.init_with_output(key, x, True), jax.random.key(0), x)


MET = {}


def example_of(name: str) -> jax.ShapeDtypeStruct:
    """Two examples of what a model takes."""
    if models.takes(name) == "tokens":
        return jax.ShapeDtypeStruct((2, models.defaults(name).get("block_size", 32)), jnp.int32)
    return jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)


def met(name: str, classes: int = 10, example=None):
    """(block, shape of its input, shapes of its variables) of every block of a network, without computing. Blocks that
    are alike and meet the same shape are looked at once, so that 602 of them are quick."""
    x = jax.ShapeDtypeStruct(example, jnp.float32) if example else example_of(name)
    for block in models.blocks(name, classes):
        if (block, str(x)) not in MET:
            def init(key, x, block=block):
                given, named = arguments(block, x, train=True)
                return block.init_with_output(key, *given, **named)

            MET[block, str(x)] = jax.eval_shape(init, jax.random.key(0), x)
        y, variables = MET[block, str(x)]
        yield block, x, variables
        x = y


def normal(seed: int, *shape: int) -> jax.Array:
    """Draws of NumPy: JAX would compile a program for every shape."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def plain(x, kernel, stride=1):
    """A convolution that JAX differentiates."""
    padding, layout = ((kernel.shape[0] // 2,) * 2,) * 2, ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=layout)
