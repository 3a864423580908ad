"""The layers that the convolutional families share, in one place, so that one cure of a slow layer cures all.

All take [batch, height, width, channel] in float32 or, with kernels of the same dtype, in bfloat16, and return that
dtype; sums over a batch or a map are float32 (fdg_jax.stage.precision says who casts what). Convolutions
(fdg_jax.layers.convolution) have no bias, as a batch norm follows, where a model does not ask for one.
Nothing here computes at import.

Deviation from the authors' released code: our convolutions start from He's normal distribution over the fan-out, with
variance 2 / (k k features). The released code leaves PyTorch's default, a uniform distribution with variance
1 / (3 k k channels). Where a convolution has as many features as channels, the standard deviation is 2.4 times as
large here. In its ResNets a line with He's distribution (over the fan-in) is there and commented out. The paper says
nothing about it.

Convolutions, batch norms and rectifiers have a hand-written backward pass (so reverse mode only). They keep their
weights as residuals that are the very arguments, so that an engine may put other weights into a stashed VJP closure.
What each cure is worth against what JAX makes of the plain forms, which are in `benchmarks/block_cost.py` with what was
tried and dropped:

    taskset -c 1 .venv/bin/python -m benchmarks.block_cost
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fdg_jax.layers.convolution import conv, plain_conv

he_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
# PyTorch's default for a linear layer's weights, which the authors' code leaves as it is: uniform in +-1/sqrt(fan_in).
torch_linear = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

MOMENTUM = 0.9
EPSILON = 1e-5


class Conv(nn.Module):
    """A k x k convolution: [b, h, w, c] -> [b, h / stride, w / stride, features].

    groups: channels in and out fall into so many groups that do not see each other; c of them is depthwise.
    bias: whether a number is added to each feature. It starts at zero.
    """

    features: int
    size: int = 3
    stride: int = 1
    groups: int = 1
    bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.size, self.size, x.shape[-1] // self.groups, self.features)
        kernel = self.param("kernel", he_fan_out, shape, jnp.float32)
        alone = self.groups == 1
        y: Any = conv(x, kernel, self.stride) if alone else plain_conv(x, kernel, self.stride, self.groups)
        if not self.bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        return (y.astype(jnp.float32) + bias).astype(y.dtype)  # so that the bias's gradient is a float32 sum


class BatchNorm(nn.Module):
    """Batch normalisation over batch, height and width, or over whatever axes come before the channels; epsilon 1e-5.

    momentum: what the running statistics keep of themselves at every batch (PyTorch's is 1 minus this number). The
    running variance follows the biased batch variance, as Flax has it; PyTorch follows the unbiased one, which is
    larger by a part in b h w - 1: 1/8191 at most for batch 128 on 8 x 8 maps.
    """

    momentum: float = MOMENTUM

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        channels = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, channels, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, channels, jnp.float32)
        mean = self.variable("batch_stats", "mean", jnp.zeros, channels, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, channels, jnp.float32)
        if not train:
            return _normalise(x, mean.value, lax.rsqrt(var.value + EPSILON), scale, bias)
        y, batch_mean, batch_var = batch_norm(x, scale, bias)
        if not self.is_initializing():
            mean.value = self.momentum * mean.value + (1 - self.momentum) * batch_mean
            var.value = self.momentum * var.value + (1 - self.momentum) * batch_var
        return y


def sum_dtype(x: jax.Array) -> jnp.dtype:
    """The dtype in which numbers of x are summed: float32, or float64 where x is (to compare with)."""
    return jnp.promote_types(x.dtype, jnp.float32)


@jax.custom_vjp
def batch_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(y, mean, biased variance) of x [b, h, w, c], or of any rank with the channels last, normalised by its own
    statistics; the rest is [c].

    Statistics and gradients are summed in float32 whatever the dtype of x. No gradient flows through the
    returned statistics, which are for the running ones. The backward pass reads x and dy twice: two sums a
    channel, then dx = a dy + b x + c. It keeps x and two numbers a channel.
    """
    return _batch_norm_forward(x, scale, bias)[0]


def _normalise(x, mean, inverse_std, scale, bias):
    return ((x - mean) * (inverse_std * scale) + bias).astype(x.dtype)


def _but_channels(x) -> tuple[int, ...]:
    """The axes that a channel's statistics are taken over."""
    return tuple(range(x.ndim - 1))


def _batch_norm_forward(x, scale, bias):
    accurate, axes = x.astype(sum_dtype(x)), _but_channels(x)
    mean = jnp.mean(accurate, axes)
    var = jnp.maximum(jnp.mean(jnp.square(accurate), axes) - jnp.square(mean), 0.0)
    inverse_std = lax.rsqrt(var + EPSILON)
    return (_normalise(x, mean, inverse_std, scale, bias), mean, var), (x, mean, inverse_std, scale)


def _batch_norm_backward(residuals, cotangents):
    x, mean, inverse_std, scale = residuals
    dy = cotangents[0].astype(sum_dtype(x))
    n, axes = x.size // x.shape[-1], _but_channels(x)
    dbias = jnp.sum(dy, axes)
    dscale = jnp.sum(dy * (x - mean), axes) * inverse_std
    a = inverse_std * scale
    b = -a * inverse_std * dscale / n
    c = -a * dbias / n - b * mean
    # Not b * (x - mean): what both passes need, XLA on a CPU stores after the first (a step of ResNet-20: 10% longer).
    dx = a * dy + (b * x + c)
    return dx.astype(x.dtype), dscale.astype(scale.dtype), dbias.astype(scale.dtype)


batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    """max(x, 0); its gradient is 0 at 0, as jax.nn.relu's is.

    What is kept for the backward pass is the result, which the next layer keeps as well, and then it is kept once.
    jax.nn.relu keeps what it selected by: a bool and a float32 of zeros for each of its numbers.
    """
    return jnp.maximum(x, 0)


def _relu_forward(x):
    y = jnp.maximum(x, 0)
    return y, y


relu.defvjp(_relu_forward, lambda y, dy: (jnp.where(y > 0, dy, jnp.zeros_like(dy)),))


@jax.custom_vjp
def relu6(x: jax.Array) -> jax.Array:
    """min(max(x, 0), 6); its gradient is 0 at 0 and at 6, as PyTorch has it (JAX: one half at 6). Kept as `relu`'s."""
    return jnp.clip(x, 0, 6)


def _relu6_forward(x):
    y = jnp.clip(x, 0, 6)
    return y, y


relu6.defvjp(_relu6_forward, lambda y, dy: (jnp.where((y > 0) & (y < 6), dy, jnp.zeros_like(dy)),))


class Head(nn.Module):
    """Global average pooling and a linear layer: [b, h, w, c] -> logits [b, classes].

    Deviation: the weights start as PyTorch's do, but the bias at zero, where PyTorch draws it from the same range.
    """

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        del train
        pooled = jnp.mean(x, axis=(1, 2), dtype=sum_dtype(x)).astype(x.dtype)
        return nn.Dense(self.classes, kernel_init=torch_linear, dtype=x.dtype, name="dense")(pooled)


def three_layers(residual: Callable[[int, int], nn.Module], channels: Sequence[int], n: int) -> list[nn.Module]:
    """The residual blocks of both families: a layer of n for each of the three `channels`, made by
    residual(channels, stride). The first block of the second and of the third layer halves the map."""
    return [
        residual(width, 2 if layer > 0 and block == 0 else 1)
        for layer, width in enumerate(channels)
        for block in range(n)
    ]
