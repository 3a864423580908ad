"""The layers that the convolutional families share, in one place, so that one cure of a slow layer cures all.

All take [batch, height, width, channel] in float32 or, with kernels of the same dtype, in bfloat16, and return that
dtype; sums over a batch or a map are float32 (fdg_jax.precision says who casts what). Convolutions have no bias (a
batch norm follows), pad by k // 2 on both sides as the reference implementations do (Flax's "SAME" pads a stride-2
convolution on one side only), and start from He's normal distribution over the fan-out. Nothing here computes at
import.

Three functions have a hand-written backward pass (so reverse mode only); `benchmarks/block_cost.py` holds the
plain forms, measures what each cure is worth and says what was tried and dropped. ResNet-20, batch 128, images/s of
forward and backward on one core that others were using too (noise 3% and, on JAX 0.12, 8%):

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 taskset -c 1 .venv/bin/python -m benchmarks.block_cost

                  JAX 0.10.2     JAX 0.12.0     kept between forward and backward
    batch_norm    +3 to +4%      (in noise)     408 -> 312 MB
    narrow_conv   +9%            +2%            same
    both          +9 to +14%     -2 to +9%      408 -> 312 MB

WRN-16-4 (the same with `--model wrn16_4 --batch-size 64`) has one narrow convolution: its time is the same within
5%, its closure goes from 513 to 391 MB.
`relu` was measured against jax.nn.relu the same way, on top of both, with JAX 0.10.2 on a core shared with others: the
forward pass 15% faster, the whole +5%, 311 -> 193 MB.
The first two keep their weights as residuals that are the very arguments, so that an engine may put other
weights into a stashed VJP closure.
"""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

he_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
# PyTorch's default for a linear layer's weights, which the authors' code leaves as it is: uniform in +-1/sqrt(fan_in).
torch_linear = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

MOMENTUM = 0.9
EPSILON = 1e-5
PER_CHANNEL = (0, 1, 2)  # the axes that a channel's statistics are taken over


class Conv(nn.Module):
    """A k x k convolution without bias: [b, h, w, c] -> [b, h / stride, w / stride, features].

    groups: channels in and out fall into so many groups that do not see each other; c of them is depthwise.
    """

    features: int
    size: int = 3
    stride: int = 1
    groups: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.size, self.size, x.shape[-1] // self.groups, self.features)
        kernel = self.param("kernel", he_fan_out, shape, jnp.float32)
        if self.size == 3 and self.stride == self.groups == 1 and self.features <= 16 and x.shape[2] % 2 == 0:
            return narrow_conv(x, kernel)
        return conv(x, kernel, self.stride, self.groups)


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """x [b, h, w, c] with kernel [k, k, c / groups, features], padded by k // 2 on both sides."""
    pad = (kernel.shape[0] // 2, kernel.shape[0] // 2)
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), (pad, pad), dimension_numbers=layout, feature_group_count=groups
    )


@jax.custom_vjp
def narrow_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`conv` of stride 1 for a 3 x 3 kernel of few features and even width; on a CPU two pixels at a time.

    XLA's CPU convolution does not fill its vectors with 16 features. A kernel of 3 x 4 and stride 2 along the
    width makes two neighbouring pixels, 32 features, at once: a third more arithmetic, but full vectors.
    Elsewhere it is the plain convolution.
    """
    return _narrow_conv(x, kernel)


def _narrow_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.platform_dependent(x, kernel, cpu=_two_pixels_at_once, default=conv)


def _two_pixels_at_once(x: jax.Array, kernel: jax.Array) -> jax.Array:
    left = jnp.pad(kernel, ((0, 0), (0, 1), (0, 0), (0, 0)))
    right = jnp.pad(kernel, ((0, 0), (1, 0), (0, 0), (0, 0)))
    pairs = lax.conv_general_dilated(
        x,
        jnp.concatenate([left, right], axis=3),  # [3, 4, c, 2 features]
        (1, 2),
        ((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # [b, h, w / 2, 2 features]
    return pairs.reshape(*x.shape[:3], kernel.shape[3])


def _narrow_conv_backward(residuals, dy):
    x, kernel = residuals
    turned = kernel[::-1, ::-1].swapaxes(2, 3)  # dx is dy convolved with the kernel turned by 180 degrees
    dx = _narrow_conv(dy, turned) if turned.shape[3] <= 16 else conv(dy, turned)
    (dkernel,) = jax.linear_transpose(lambda kernel: conv(x, kernel), kernel)(dy)
    return dx, dkernel


narrow_conv.defvjp(lambda x, kernel: (_narrow_conv(x, kernel), (x, kernel)), _narrow_conv_backward)


class BatchNorm(nn.Module):
    """Batch normalisation over batch, height and width; momentum 0.9 (PyTorch calls it 0.1), epsilon 1e-5.

    The running variance follows the biased batch variance, as Flax has it; PyTorch follows the unbiased one,
    which is larger by a part in b h w - 1: 1/8191 at most for batch 128 on 8 x 8 maps.
    """

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
            mean.value = MOMENTUM * mean.value + (1 - MOMENTUM) * batch_mean
            var.value = MOMENTUM * var.value + (1 - MOMENTUM) * batch_var
        return y


@jax.custom_vjp
def batch_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(y, mean, biased variance) of x [b, h, w, c] normalised by its own statistics; the rest is [c].

    Statistics and gradients are summed in float32 whatever the dtype of x. No gradient flows through the
    returned statistics, which are for the running ones. The backward pass reads x and dy twice: two sums a
    channel, then dx = a dy + b (x - mean) + c. It keeps x and two numbers a channel.
    """
    return _batch_norm_forward(x, scale, bias)[0]


def _normalise(x, mean, inverse_std, scale, bias):
    return ((x - mean) * (inverse_std * scale) + bias).astype(x.dtype)


def _batch_norm_forward(x, scale, bias):
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32, PER_CHANNEL)
    var = jnp.maximum(jnp.mean(jnp.square(x32), PER_CHANNEL) - jnp.square(mean), 0.0)
    inverse_std = lax.rsqrt(var + EPSILON)
    return (_normalise(x, mean, inverse_std, scale, bias), mean, var), (x, mean, inverse_std, scale)


def _batch_norm_backward(residuals, cotangents):
    x, mean, inverse_std, scale = residuals
    dy = cotangents[0].astype(jnp.float32)
    n = x.size // x.shape[-1]
    dbias = jnp.sum(dy, PER_CHANNEL)
    dscale = jnp.sum(dy * (x - mean), PER_CHANNEL) * inverse_std
    a = inverse_std * scale
    b = -a * inverse_std * dscale / n
    c = -a * dbias / n
    dx = a * dy + b * (x - mean) + c
    return dx.astype(x.dtype), dscale.astype(scale.dtype), dbias.astype(scale.dtype)


batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    """max(x, 0). Its backward pass reads the result, which the next convolution keeps anyway; jax.nn.relu keeps a mask
    and an array of zeros beside it. The gradient is the same, 0 at 0."""
    return jnp.maximum(x, 0)


def _relu_forward(x):
    y = relu(x)
    return y, y


relu.defvjp(_relu_forward, lambda y, dy: (jnp.where(y > 0, dy, 0),))


class Head(nn.Module):
    """Global average pooling and a linear layer: [b, h, w, c] -> logits [b, classes].

    Deviation: the weights start as PyTorch's do, but the bias at zero, where PyTorch draws it from the same range.
    """

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        del train
        pooled = jnp.mean(x, axis=(1, 2), dtype=jnp.float32).astype(x.dtype)
        return nn.Dense(self.classes, kernel_init=torch_linear, dtype=x.dtype, name="dense")(pooled)


def three_layers(residual: Callable[[int, int], nn.Module], channels: Sequence[int], n: int) -> list[nn.Module]:
    """The residual blocks of both families: a layer of n for each of the three `channels`, made by
    residual(channels, stride). The first block of the second and of the third layer halves the map."""
    return [
        residual(width, 2 if layer > 0 and block == 0 else 1)
        for layer, width in enumerate(channels)
        for block in range(n)
    ]
