"""Shapes of whole networks, and convolutions as XLA has them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fdg_jax import models
from fdg_jax.split import Stage


def shapes(name: str, classes: int = 10, example=(2, 32, 32, 3)):
    """(the output's shape, the variables' shapes) of a whole network, without running or initialising it."""
    network = Stage(tuple(models.blocks(name, classes)))
    x = jax.ShapeDtypeStruct(example, jnp.float32)
    return jax.eval_shape(lambda key, x: network.init_with_output(key, x, True), jax.random.key(0), x)


MET = {}


def met(name: str, classes: int = 10, example=(2, 32, 32, 3)):
    """(block, shape of its input, shapes of its variables) of every block of a network, without computing. Blocks that
    are alike and meet the same shape are looked at once, so that 602 of them are quick."""
    x = jax.ShapeDtypeStruct(example, jnp.float32)
    for block in models.blocks(name, classes):
        if (block, x.shape) not in MET:
            init = lambda key, x, b=block: b.init_with_output(key, x, True)  # noqa: E731
            MET[block, x.shape] = jax.eval_shape(init, jax.random.key(0), x)
        y, variables = MET[block, x.shape]
        yield block, x, variables
        x = y


def normal(seed: int, *shape: int) -> jax.Array:
    """Draws of NumPy: JAX would compile a program for every shape."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def plain(x, kernel, stride=1):
    """A convolution that JAX differentiates."""
    padding, layout = ((kernel.shape[0] // 2,) * 2,) * 2, ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=layout)
