"""Convolutions of several seeds: packed into one for a GPU, and one after the other on a CPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdg_jax.layers import convolution, packed

# Sums of up to 9 x 64 products of numbers about 1 in size, in another order and with zeros in between.
TOLERANCE = {"rtol": 1e-5, "atol": 2e-4}


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize(("seeds", "channels", "features", "n"), [
    (32, 16, 16, 4), (32, 3, 16, 4), (32, 16, 32, 2), (32, 64, 64, 1), (6, 16, 16, 3), (1, 16, 16, 1), (5, 16, 16, 1),
])  # fmt: skip
def test_as_many_seeds_lie_side_by_side_as_fill_64_channels(seeds, channels, features, n):
    assert packed.side_by_side(seeds, channels, features) == n


@pytest.mark.parametrize(("size", "stride", "channels", "features"), [
    (3, 1, 3, 16), (1, 2, 16, 32), pytest.param(3, 2, 16, 32, marks=pytest.mark.slow),
])  # fmt: skip
def test_packed_convolutions_and_their_gradients_are_those_of_each_seed(size, stride, channels, features):
    x, kernel, dy = drawn(
        (4, 2, 6, 6, channels), (4, size, size, channels, features), (4, 2, 6 // stride, 6 // stride, features)
    )
    forward, of_x, of_kernel = (
        partial(each, stride=stride)
        for each in (convolution.plain_conv, convolution.plain_input_gradient, convolution.plain_weight_gradient)
    )
    each = zip(x, kernel, dy, strict=True)
    alone = [(forward(x, kernel), of_x(x, dy, kernel), of_kernel(x, dy, kernel)) for x, kernel, dy in each]
    found = (
        packed.forward(forward, x, kernel),
        packed.input_gradient(of_x, x, dy, kernel),
        packed.weight_gradient(of_kernel, x, dy, kernel),
    )
    for ours, theirs in zip(found, zip(*alone, strict=True), strict=True):
        np.testing.assert_allclose(ours, jnp.stack(theirs), **TOLERANCE)


def test_vmap_computes_each_seed_on_a_cpu_and_64_channels_at_once_on_a_gpu():
    x, kernel = drawn((4, 2, 8, 8, 16), (4, 3, 3, 16, 16))

    def loss(x, kernel):
        return jnp.sum(jnp.square(convolution.conv(x, kernel, 1)))

    seeds = jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=(0, 1))))
    one = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    found = seeds(x, kernel)
    for i in range(4):
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(one(x[i], kernel[i])), strict=True):
            np.testing.assert_allclose(ours[i], theirs, rtol=1e-5, atol=2e-4)
    text = seeds.trace(x, kernel).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.convolution") == 3 and "64xf32>" in text and "feature_group_count = 4" not in text


def test_a_kernel_that_all_seeds_share_is_the_kernel_of_each():
    x, kernel = drawn((3, 2, 8, 8, 4), (3, 3, 4, 16))
    found = jax.vmap(lambda x: convolution.conv(x, kernel, 1))(x)
    for i in range(3):
        np.testing.assert_allclose(found[i], convolution.conv(x[i], kernel, 1), **TOLERANCE)
