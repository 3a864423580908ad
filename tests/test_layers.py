"""The hand-written layers are what Flax and XLA compute."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_parts import normal, plain
from small import jit

from fdg_jax import layers
from fdg_jax.layers import convolution


def test_a_depthwise_convolution_filters_each_channel_for_itself():
    x = normal(0, 2, 6, 6, 4)
    kernel = normal(1, 3, 3, 1, 4)
    together = convolution.plain_conv(x, kernel, 2, groups=4)
    for c in range(4):
        alone = convolution.conv(x[..., c : c + 1], kernel[..., c : c + 1], 2)
        np.testing.assert_allclose(together[..., c : c + 1], alone, rtol=0, atol=1e-5)  # sums of 9, float32


def test_convolutions_start_from_he_normal_over_the_fan_out():
    kernels = jit(layers.Conv(64).init)(jax.random.key(0), jnp.ones((1, 8, 8, 32)))
    kernel = kernels["params"]["kernel"]
    # 18432 draws: the standard error of their standard deviation is 0.5%, so 3% is six of them.
    np.testing.assert_allclose(np.std(np.asarray(kernel)), np.sqrt(2 / (9 * 64)), rtol=0.03)


def test_the_head_starts_with_the_weights_of_a_pytorch_linear_layer_and_no_bias():
    variables = layers.Head(100).lazy_init(jax.random.key(0), jnp.ones((1, 8, 8, 64)), False)
    kernel, bias = (np.asarray(variables["params"]["dense"][name]) for name in ("kernel", "bias"))
    # 6400 draws, uniform in +-1/8: none beyond it, and the largest is nearer to it than 0.1% (1 in e^6 not to be).
    assert 0.999 / 8 < np.abs(kernel).max() <= 1 / 8
    np.testing.assert_allclose(kernel.std(), 1 / 8 / np.sqrt(3), rtol=0.03)  # standard error 0.6%
    assert not bias.any()


def both_gradients(f, g, *arguments):
    """Values of f and g and their gradients by every argument, for one random cotangent."""
    dy = normal(9, *jax.eval_shape(f, *arguments).shape)

    @jit
    def both(dy, *arguments):
        y, pull = jax.vjp(f, *arguments)
        z, pull_plain = jax.vjp(g, *arguments)
        return [y, *pull(dy)], [z, *pull_plain(dy)]

    return both(dy, *arguments)


def relative_error(a, b) -> float:
    return float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))


CONVOLUTIONS = [
    ((2, 32, 32, 3), (3, 16), 1),  # four pixels at once
    ((2, 8, 8, 8), (3, 32), 1),  # two for dx only
    ((2, 8, 8, 32), (3, 16), 1),  # two, but for dx
    ((3, 7, 10, 3), (3, 16), 1),  # two, as four do not divide the width
    ((2, 7, 9, 16), (3, 8), 1),  # an odd width
    ((5, 17, 15, 16), (3, 32), 2),
    ((3, 21, 20, 8), (1, 24), 2),
    ((2, 8, 8, 4), (4, 8), 1),  # gives 9 x 9
]


@pytest.mark.parametrize(("shape", "kernel", "stride"), CONVOLUTIONS)
def test_the_cured_convolution_is_the_plain_one(shape, kernel, stride):
    size, features = kernel
    x, weights = normal(0, *shape), normal(1, size, size, shape[-1], features)
    pairs = both_gradients(lambda *a: convolution.conv(*a, stride), lambda *a: plain(*a, stride), x, weights)
    for cured, reference in zip(*pairs, strict=True):
        assert relative_error(cured, reference) < 1e-5  # sums of up to 2048 products, other order, float32


def test_weight_gradients_of_1_x_1_are_those_of_the_convolution():
    stride = 2
    x, weights = normal(0, 7, 17, 15, 8), normal(1, 1, 1, 8, 24)
    dy = normal(2, *plain(x, weights, stride).shape)
    for found in (
        convolution.weight_gradient(x, dy, weights, stride),
        jax.vmap(lambda x, dy: convolution.weight_gradient(x, dy, weights, stride))(x[None], dy[None])[0],
    ):
        assert relative_error(found, convolution.plain_weight_gradient(x, dy, weights, stride)) < 1e-5


def test_weight_gradients_of_bfloat16_are_summed_in_float32():
    size = 3
    x, dy = (normal(seed, 64, 8, 8, 8).astype(jnp.bfloat16) for seed in (0, 1))  # 4096 summands: bfloat16 rounds at 256
    kernel = jnp.zeros((size, size, 8, 8), jnp.bfloat16)
    found = convolution.weight_gradient(x, dy, kernel)
    wide = convolution.plain_weight_gradient(*(each.astype(jnp.float32) for each in (x, dy, kernel)))
    assert found.dtype == jnp.bfloat16
    assert bool(jnp.all(jnp.abs(found.astype(jnp.float32) - wide) <= 2**-8 * jnp.abs(wide) + 1e-4))  # one rounding


@pytest.mark.parametrize(("channels", "features", "stride"), [(8, 32, 1), (32, 64, 2)])
def test_elsewhere_than_on_a_cpu_convolutions_are_the_plain_ones(channels, features, stride):
    def convolutions(f):
        def gradients(x, kernel):
            y, pull = jax.vjp(lambda x, kernel: f(x, kernel, stride), x, kernel)
            return y, pull(y)

        shapes = ((2, 8, 8, channels), (3, 3, channels, features))
        traced = jax.jit(gradients).trace(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        return sorted(line.split("dim_numbers")[1] for line in text.splitlines() if "dim_numbers" in line)

    found = convolutions(convolution.conv)
    assert len(found) == 3 and found == convolutions(plain)


def test_batch_norm_is_flax_batch_norm():
    size = (4, 6, 10, 3)
    x = 5.0 + normal(0, *size)
    ours, theirs = layers.BatchNorm(), nn.BatchNorm(momentum=0.9, epsilon=1e-5)
    scale, bias = normal(1, 2, size[-1])
    stats = {"mean": jnp.full(size[-1], 0.3), "var": jnp.full(size[-1], 2.0)}

    def run(module, **train):
        def f(x, scale, bias):
            variables = {"params": {"scale": scale, "bias": bias}, "batch_stats": stats}
            y, changed = module.apply(variables, x, **train, mutable=["batch_stats"])
            return y, changed["batch_stats"]

        return f

    for mine, flax_flag in (True, False), (False, True):
        f, g = run(ours, train=mine), run(theirs, use_running_average=flax_flag)
        results = both_gradients(lambda *a, f=f: f(*a)[0], lambda *a, g=g: g(*a)[0], x, scale, bias)
        for cured, reference in zip(*results, strict=True):
            # dx is a difference of terms of the size of dy: 1e-5 is a hundred roundings.
            assert relative_error(cured, reference) < 1e-5
        moved = jit(lambda *a, f=f, g=g: (f(*a)[1], g(*a)[1]))(x, scale, bias)
        for name in "mean", "var":
            np.testing.assert_allclose(moved[0][name], moved[1][name], rtol=1e-6)


def test_batch_norm_sums_in_float32_when_the_activations_are_bfloat16():
    x = (100 + normal(0, 64, 8, 8, 4)).astype(jnp.bfloat16)
    ones = jnp.ones(4)
    (y, mean, var), pull = jax.vjp(layers.batch_norm, x, ones, ones)
    assert (y.dtype, mean.dtype, var.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    np.testing.assert_allclose(mean, np.asarray(x, np.float64).mean((0, 1, 2)), rtol=1e-6)
    dx, dscale, _ = pull((y, mean, var))
    assert (dx.dtype, dscale.dtype) == (jnp.bfloat16, jnp.float32)


def test_relu_and_its_gradient_are_jaxs_also_at_zero():
    x, dy = jnp.asarray([-2.0, -0.0, 0.0, 3.0, jnp.nan]), jnp.arange(1.0, 6.0)
    (y, pull), (expected, expected_pull) = jax.vjp(layers.relu, x), jax.vjp(jax.nn.relu, x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(*pull(dy), *expected_pull(dy))
