"""The layers that the convolutional families share, in one place, so that one cure of a slow layer cures all.

All take [batch, height, width, channel] in float32 or, with kernels of the same dtype, in bfloat16, and return that
dtype; sums over a batch or a map are float32 (fdg_jax.precision says who casts what). Convolutions have no bias (a
batch norm follows), pad by k // 2 on both sides as the reference implementations do (Flax's "SAME" pads a stride-2
convolution on one side only), and start from He's normal distribution over the fan-out. Nothing here computes at
import.

Convolutions, batch norms and rectifiers have a hand-written backward pass (so reverse mode only). They keep their
weights as residuals that are the very arguments, so that an engine may put other weights into a stashed VJP closure.
What each cure is worth against what JAX makes of the plain forms, which are in `benchmarks/block_cost.py` with what was
tried and dropped:

    taskset -c 1 .venv/bin/python -m benchmarks.block_cost

They are made for a device that is one core: a weight gradient by patches spreads over several cores less well than
XLA's convolution.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

he_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
# PyTorch's default for a linear layer's weights, which the authors' code leaves as it is: uniform in +-1/sqrt(fan_in).
torch_linear = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

MOMENTUM = 0.9
EPSILON = 1e-5
PATCH_BYTES = 2_500_000  # of patches at a time
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
        if self.groups > 1:
            return plain_conv(x, kernel, self.stride, self.groups)
        return conv(x, kernel, self.stride)


def plain_conv(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """x [b, h, w, c] with kernel [k, k, c / groups, features], padded by k // 2 on both sides."""
    pad = (kernel.shape[0] // 2, kernel.shape[0] // 2)
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), (pad, pad), dimension_numbers=layout, feature_group_count=groups
    )


def plain_input_gradient(x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """As JAX differentiates `plain_conv` of one group; of x only shape and dtype count."""
    return jax.linear_transpose(lambda x: plain_conv(x, kernel, stride), x)(dy)[0]


def plain_weight_gradient(x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """As JAX differentiates `plain_conv` of one group; of the kernel only shape and dtype count."""
    return jax.linear_transpose(lambda kernel: plain_conv(x, kernel, stride), kernel)(dy)[0]


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """`plain_conv` of one group. On a CPU it and its gradients are computed in the ways below, elsewhere plainly."""
    return forward_conv(x, kernel, stride)


def _conv_backward(stride, residuals, dy):
    x, kernel = residuals
    return input_gradient(x, dy, kernel, stride), weight_gradient(x, dy, kernel, stride)


conv.defvjp(lambda x, kernel, stride: (forward_conv(x, kernel, stride), (x, kernel)), _conv_backward)


def forward_conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """What `conv` gives; on a CPU few features are computed for several pixels at a time."""
    pixels = _pixels_at_once(x.shape, kernel.shape, stride)
    if pixels == 1:
        return plain_conv(x, kernel, stride)
    return lax.platform_dependent(x, kernel, cpu=partial(_together, pixels), default=plain_conv)


def input_gradient(x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """The gradient of `conv`'s x: dy convolved with the kernel turned by 180 degrees; on a CPU as in `forward_conv`."""
    pixels = _pixels_at_once(dy.shape, (*kernel.shape[:2], kernel.shape[3], kernel.shape[2]), stride)

    def plain(dy, kernel):
        return plain_input_gradient(x, dy, kernel, stride)

    def together(dy, kernel):
        return _together(pixels, dy, lax.rev(kernel, (0, 1)).swapaxes(2, 3))

    return plain(dy, kernel) if pixels == 1 else lax.platform_dependent(dy, kernel, cpu=together, default=plain)


def _pixels_at_once(x: Sequence[int], kernel: Sequence[int], stride: int) -> int:
    """Of these shapes, how many neighbours in a row are computed at once.

    XLA's CPU convolution does not fill its vectors with 16 features. A kernel of 3 x 4 and stride 2 along the width
    makes two pixels, 32 features, at once: a third more arithmetic, but full vectors. Of an image's 3 channels one of
    3 x 6 makes four, with twice the arithmetic of one that was a quarter as fast as others.
    """
    if stride > 1 or kernel[0] != 3 or kernel[3] > 16:
        return 1
    return next(pixels for pixels in ((4, 2, 1) if x[3] <= 4 else (2, 1)) if x[2] % pixels == 0)


def _together(pixels: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
    shifted = [jnp.pad(kernel, ((0, 0), (p, pixels - 1 - p), (0, 0), (0, 0))) for p in range(pixels)]
    runs = lax.conv_general_dilated(
        x,
        jnp.concatenate(shifted, axis=3),  # [3, 2 + pixels, c, pixels * features]
        (1, pixels),
        ((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # [b, h, w / pixels, pixels * features]
    return runs.reshape(*x.shape[:3], kernel.shape[3])


_spread = ContextVar("_spread", default=False)


@contextmanager
def spread_batches() -> Iterator[None]:
    """While tracing: batches lie on several devices and XLA is to insert the communication. Parts of such a batch, one
    after the other, would be sent to every device first, so weight gradients are plain ones."""
    token = _spread.set(True)
    try:
        yield
    finally:
        _spread.reset(token)


def weight_gradient(x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """The gradient of `conv`'s kernel, of which only shape and dtype count.

    XLA's CPU convolution is slow here, so kernels of 1 x 1 and maps of up to 16 x 16 are multiplied as matrices there:
    dy by the patches of x that the kernel saw. On maps of 32 x 32 that is slower (16 channels) or equal (64).
    """

    def plain(x, dy):
        return plain_weight_gradient(x, dy, kernel, stride)

    if _spread.get() or (kernel.shape[0] > 1 and dy.shape[1] * dy.shape[2] > 16 * 16):
        return plain(x, dy)
    return lax.platform_dependent(x, dy, cpu=partial(_by_patches, kernel.shape[0], stride), default=plain)


def _by_patches(size: int, stride: int, x: jax.Array, dy: jax.Array) -> jax.Array:
    """A few images at a time: all patches at once would go through memory instead of the core's caches."""
    b, h, w, features = dy.shape
    c, pad = x.shape[3], (size // 2, size // 2)
    an_image = h * w * size * size * c * x.dtype.itemsize
    at_once = b if size == 1 else max(1, min(b, PATCH_BYTES // an_image))
    first = b % at_once or at_once

    def part(begin, images):
        seen = jnp.pad(lax.dynamic_slice_in_dim(x, begin, images), ((0, 0), pad, pad, (0, 0)))
        patches = [
            seen[:, i : i + (h - 1) * stride + 1 : stride, j : j + (w - 1) * stride + 1 : stride]
            for i in range(size)
            for j in range(size)
        ]
        patches = jnp.concatenate(patches, axis=3).reshape(-1, size * size * c)
        cotangents = lax.dynamic_slice_in_dim(dy, begin, images).reshape(-1, features)
        # This way round, as XLA's product of matrices on a CPU is faster with the wider one on the right.
        accurate = jnp.promote_types(x.dtype, jnp.float32)
        return lax.dot_general(cotangents, patches, (((0,), (0,)), ((), ())), preferred_element_type=accurate)

    def add(number, before):
        return before + part(first + number * at_once, at_once)

    summed = part(0, first)
    if first < b:
        summed = lax.fori_loop(0, (b - first) // at_once, add, summed)
    return summed.T.reshape(size, size, c, features).astype(x.dtype)


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
    channel, then dx = a dy + b x + c. It keeps x and two numbers a channel.
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
