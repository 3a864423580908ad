"""Convolutions, and what a CPU core computes instead of XLA's own where that is slow.

[batch, height, width, channel] with kernels [k, k, channel, features], padded by k // 2 on both sides as the reference
implementations do (Flax's "SAME" pads a stride-2 convolution on one side only). Sums over a batch are float32.

`conv` has a hand-written backward pass (so reverse mode only). Elsewhere than on a CPU all of it is XLA's convolutions.
What each of these ways is worth, `benchmarks/block_cost.py` measures. They are made for a device that is one core, and
for programs without YNNPACK's convolutions (fdg_jax.machine.programs). The option `layers=plain` of
`benchmarks.images_per_second` is without them.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

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


def weight_gradient(x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """The gradient of `conv`'s kernel, of which only shape and dtype count; of 1 x 1 on a CPU a product of matrices."""

    def plain(x, dy):
        return plain_weight_gradient(x, dy, kernel, stride)

    if PLAIN or kernel.shape[0] > 1:
        return plain(x, dy)
    return lax.platform_dependent(x, dy, cpu=partial(_product, stride), default=plain)


def _product(stride: int, x: jax.Array, dy: jax.Array) -> jax.Array:
    """The gradient of a kernel of 1 x 1, [1, 1, c, features]."""
    seen = x[:, ::stride, ::stride].reshape(-1, x.shape[3])
    # This way round, as XLA's product of matrices on a CPU is faster with the wider one on the right.
    accurate = jnp.promote_types(x.dtype, jnp.float32)
    cotangents = dy.reshape(-1, dy.shape[3])
    product = lax.dot_general(cotangents, seen, (((0,), (0,)), ((), ())), preferred_element_type=accurate)
    return product.T[None, None].astype(x.dtype)
