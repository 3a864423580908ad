"""Convolutions, and what a CPU core computes instead of XLA's own where that is slow.

[batch, height, width, channel] with kernels [k, k, channel, features], padded by k // 2 on both sides as the reference
implementations do (Flax's "SAME" pads a stride-2 convolution on one side only). Sums over a batch are float32.

`conv` has a hand-written backward pass (so reverse mode only). Elsewhere than on a CPU all of it is XLA's convolutions.
What each cure is worth, `benchmarks/block_cost.py` measures. They are made for a device that is one core: a weight
gradient by patches spreads over several cores less well than XLA's convolution (the option `layers=plain` of
`benchmarks.images_per_second` is without them).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

PATCH_BYTES = 2_500_000  # of patches at a time
PLAIN = False  # True: everything is XLA's own on a CPU as well. Benchmarks set it for devices of several cores.


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
    if PLAIN or stride > 1 or kernel[0] != 3 or kernel[3] > 16:
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

    if PLAIN or _spread.get() or (kernel.shape[0] > 1 and dy.shape[1] * dy.shape[2] > 16 * 16):
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
