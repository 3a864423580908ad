"""The layers that the models and the auxiliary networks share, and the convolutions behind them.

All take [batch, height, width, channel] in float32 or, with kernels of the same dtype, in bfloat16, and return that
dtype. Sums over a batch or a feature map are float32 (fdg_jax.stages.precision describes all casts). Convolutions
(fdg_jax.layers.convolution) have no bias unless a model asks for one, since a batch norm follows. Nothing is computed
at import.

Deviation from the authors' released code: our convolutions are initialised with He's normal distribution over the
fan-out, variance 2 / (k k features). The released code uses PyTorch's default, a uniform distribution with variance
1 / (3 k k channels). For equally many features and channels, the standard deviation is 2.4 times as large here. The
released ResNets have He's distribution (over the fan-in) in a line that is commented out. The paper does not mention
initialisation.

Convolutions, batch norms and rectifiers have a hand-written backward pass, so they support reverse mode only. Weights
that their residuals contain are the arguments themselves, so that an engine can put other weights into a stashed VJP
closure. `benchmarks/block_cost.py` measures how much faster each of these forms is than JAX's plain form. It also has
the plain forms, and lists forms that were tried and dropped:

    taskset -c 1 .venv/bin/python -m benchmarks.block_cost
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fdg_jax.layers.convolution import conv, plain_conv

Initializer = nn.initializers.Initializer
he_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
# PyTorch's default for the weights of linear layers, which the authors' code keeps: uniform in +-1/sqrt(fan_in).
# PyTorch uses it for convolutions, too; here convolutions use `he_fan_out` unless a model asks for this.
torch_linear = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

MOMENTUM = 0.9
EPSILON = 1e-5


class Conv(nn.Module):
    """A k x k convolution: [b, h, w, c] -> [b, h / stride, w / stride, features].

    features: number of output channels.
    size: k.
    stride: in both directions.
    groups: into how many independent groups the channels are split; c groups make a depthwise convolution.
    bias: whether to add a bias, initially zero.
    kernel_init: draws the first kernel.
    """

    features: int
    size: int = 3
    stride: int = 1
    groups: int = 1
    bias: bool = False
    kernel_init: Initializer = he_fan_out

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.size, self.size, x.shape[-1] // self.groups, self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        alone = self.groups == 1
        y: Any = conv(x, kernel, self.stride) if alone else plain_conv(x, kernel, self.stride, self.groups)
        if not self.bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        return (y.astype(jnp.float32) + bias).astype(y.dtype)  # the gradient of the bias is a float32 sum


class BatchNorm(nn.Module):
    """Batch normalisation over all axes but the last (the channels), with epsilon 1e-5. The shape stays.

    momentum: the weight of the old running statistics at each batch (PyTorch's momentum is 1 minus this).

    The running variance averages the biased batch variance, as in Flax. PyTorch averages the unbiased variance, which
    is larger by 1 / (b h w - 1), at most 1/8191 for batch 128 on 8 x 8 maps.
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
    """The dtype for sums over x: float32, or float64 if x is float64 (in tests)."""
    return jnp.promote_types(x.dtype, jnp.float32)


@jax.custom_vjp
def batch_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalises x by its own statistics.

    Statistics and gradients are summed in float32, whatever the dtype of x. The backward pass reads x and dy twice:
    first for two sums per channel, then for dx = a dy + b x + c. Its residuals are x and two numbers per channel.

    Arguments:
        x: [b, h, w, c], or any rank with the channels last.
        scale, bias: [c].

    Returns: (y like x, mean [c], biased variance [c]). No gradient flows through mean and variance, which are for the
    running statistics.
    """
    return _batch_norm_forward(x, scale, bias)[0]


def _normalise(x, mean, inverse_std, scale, bias):
    return ((x - mean) * (inverse_std * scale) + bias).astype(x.dtype)


def _but_channels(x) -> tuple[int, ...]:
    """All axes but the last, which is the channels'."""
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
    # Not b * (x - mean): XLA on a CPU would store x - mean for the second pass (a step of ResNet-20 takes 10% longer).
    dx = a * dy + (b * x + c)
    return dx.astype(x.dtype), dscale.astype(scale.dtype), dbias.astype(scale.dtype)


batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    """max(x, 0), with gradient 0 at 0 like jax.nn.relu.

    Its residual is the result. The next layer keeps the result as well, so the residual takes no extra memory.
    jax.nn.relu keeps a bool and a float32 zero for each number.
    """
    return jnp.maximum(x, 0)


def _relu_forward(x):
    y = jnp.maximum(x, 0)
    return y, y


relu.defvjp(_relu_forward, lambda y, dy: (jnp.where(y > 0, dy, jnp.zeros_like(dy)),))


@jax.custom_vjp
def relu6(x: jax.Array) -> jax.Array:
    """min(max(x, 0), 6), with gradient 0 at 0 and at 6 like PyTorch's (JAX's is 1/2 at 6). Its residual is the result,
    as in `relu`."""
    return jnp.clip(x, 0, 6)


def _relu6_forward(x):
    y = jnp.clip(x, 0, 6)
    return y, y


relu6.defvjp(_relu6_forward, lambda y, dy: (jnp.where((y > 0) & (y < 6), dy, jnp.zeros_like(dy)),))


class Head(nn.Module):
    """Global average pooling and a linear layer: [b, h, w, c] -> logits [b, classes].

    Deviation: weights are initialised as in PyTorch, but the bias is zero; PyTorch draws it from the range of the
        weights.
    """

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        del train
        pooled = jnp.mean(x, axis=(1, 2), dtype=sum_dtype(x)).astype(x.dtype)
        return nn.Dense(self.classes, kernel_init=torch_linear, dtype=x.dtype, name="dense")(pooled)


def three_layers(residual: Callable[[int, int], nn.Module], channels: Sequence[int], n: int) -> list[nn.Module]:
    """The residual blocks of ResNets for small images and of wide ResNets: three layers of n blocks each.

    The first block of the second and of the third layer has stride 2.

    Arguments:
        residual: residual(channels, stride) -> block.
        channels: the channels of the three layers.
        n: blocks in a layer.
    """
    return [
        residual(width, 2 if layer > 0 and block == 0 else 1)
        for layer, width in enumerate(channels)
        for block in range(n)
    ]


# Names of the axes of weights, for stages on several devices: rules say which names are sharded over the devices. Flax
# keeps such names in a box around an array. Outside of `naming`, weights are made without boxes, so that initialising
# a module of this library gives plain arrays.
EMBED, HIDDEN, HEADS, VOCABULARY = "embed", "hidden", "heads", "vocabulary"  # the axes of a transformer's matrices
_naming = ContextVar("naming", default=False)


@contextmanager
def naming() -> Iterator[None]:
    """A context in which the layers of this library name the axes of the weights that they make."""
    before = _naming.set(True)
    try:
        yield
    finally:
        _naming.reset(before)


def named(draw: Initializer, *axes: str | None) -> Initializer:
    """An initialiser whose arrays have names for their axes, within `naming`."""
    return nn.with_logical_partitioning(draw, axes) if _naming.get() and any(axes) else draw
