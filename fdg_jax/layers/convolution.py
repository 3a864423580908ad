"""Convolutions, with faster forms for a CPU core where XLA's own are slow.

Inputs are [batch, height, width, channel], kernels [k, k, channel, features]. Padding is k // 2 on both sides, as in
the reference implementations (Flax's "SAME" pads a stride-2 convolution on one side only). Sums over a batch are
float32.

`conv` has a hand-written backward pass, so it supports reverse mode only. On devices other than CPUs, `conv` uses XLA's
own convolutions only. `benchmarks/block_cost.py` measures how much each faster form gains. The faster forms are made
for devices of one core, and for programs without YNNPACK's convolutions (fdg_jax.machine.programs). The option
`layers=plain` of `benchmarks.images_per_second` turns them off. `jax.vmap` over kernels packs narrow layers
(fdg_jax.layers.packed).
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from fdg_jax.layers import packed

PLAIN = False  # True: XLA's own convolutions on a CPU as well. Benchmarks set it for devices of several cores.


def plain_conv(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """XLA's convolution of x [b, h, w, c] with kernel [k, k, c / groups, features], padded by k // 2 on both sides."""
    pad = (kernel.shape[0] // 2, kernel.shape[0] // 2)
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), (pad, pad), dimension_numbers=layout, feature_group_count=groups
    )


def plain_input_gradient(x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """JAX's gradient of `plain_conv` (one group) for x. Only the shape and dtype of x are used."""
    return jax.linear_transpose(lambda x: plain_conv(x, kernel, stride), x)(dy)[0]


def plain_weight_gradient(x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """JAX's gradient of `plain_conv` (one group) for the kernel, of which only shape and dtype are used."""
    return jax.linear_transpose(lambda kernel: plain_conv(x, kernel, stride), kernel)(dy)[0]


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """A convolution with one group, `plain_conv`. On a CPU it and its gradients use the faster forms below.

    Arguments:
        x: [b, h, w, c].
        kernel: [k, k, c, features].
        stride: in both directions.

    Returns: [b, h / stride, w / stride, features].
    """
    alone, plain = (partial(each, stride=stride) for each in (forward_conv, plain_conv))
    return packed.over_seeds(alone, partial(packed.forward, plain))(x, kernel)


def _conv_backward(stride, residuals, dy):
    x, kernel = residuals
    of_x, plain_of_x, of_kernel, plain_of_kernel = (
        partial(each, stride=stride)
        for each in (input_gradient, plain_input_gradient, weight_gradient, plain_weight_gradient)
    )
    dx = packed.over_seeds(of_x, partial(packed.input_gradient, plain_of_x))(x, dy, kernel)
    return dx, packed.over_seeds(of_kernel, partial(packed.weight_gradient, plain_of_kernel))(x, dy, kernel)


conv.defvjp(lambda x, kernel, stride: (conv(x, kernel, stride), (x, kernel)), _conv_backward)


def forward_conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """The result of `conv`. On a CPU, if there are few features, several pixels are computed at a time."""
    pixels = _pixels_at_once(x.shape, kernel.shape, stride)
    if pixels == 1:
        return plain_conv(x, kernel, stride)
    return lax.platform_dependent(x, kernel, cpu=partial(_together, pixels), default=plain_conv)


def input_gradient(x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """The gradient of `conv` for x: dy convolved with the rotated kernel. On a CPU it is computed as in
    `forward_conv`."""
    pixels = _pixels_at_once(dy.shape, (*kernel.shape[:2], kernel.shape[3], kernel.shape[2]), stride)

    def plain(dy, kernel):
        return plain_input_gradient(x, dy, kernel, stride)

    def together(dy, kernel):
        return _together(pixels, dy, lax.rev(kernel, (0, 1)).swapaxes(2, 3))

    return plain(dy, kernel) if pixels == 1 else lax.platform_dependent(dy, kernel, cpu=together, default=plain)


def _pixels_at_once(x: Sequence[int], kernel: Sequence[int], stride: int) -> int:
    """How many neighbouring pixels of a row are computed at a time, for these shapes of x and kernel.

    16 features do not fill the vectors of XLA's CPU convolution. A 3 x 4 kernel with stride 2 along the width computes
    two pixels, 32 features, at a time. This is a third more arithmetic, but it fills the vectors. For images of 3
    channels a 3 x 6 kernel computes four pixels. This is twice the arithmetic, but the plain convolution has only a
    quarter of the usual speed.
    """
    if PLAIN or stride > 1 or kernel[0] != 3 or kernel[3] > 16:
        return 1
    return next(pixels for pixels in ((4, 2, 1) if x[3] <= 4 else (2, 1)) if x[2] % pixels == 0)


def _together(pixels: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The 3 x 3 convolution, computed for several neighbouring pixels at a time."""
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
    """The gradient of `conv` for the kernel, of which only shape and dtype are used.

    On a CPU, the gradient of a 1 x 1 kernel is a matrix product.
    """

    def plain(x, dy):
        return plain_weight_gradient(x, dy, kernel, stride)

    if PLAIN or kernel.shape[0] > 1:
        return plain(x, dy)
    return lax.platform_dependent(x, dy, cpu=partial(_product, stride), default=plain)


def _product(stride: int, x: jax.Array, dy: jax.Array) -> jax.Array:
    """The gradient of a 1 x 1 kernel, [1, 1, c, features], as a matrix product."""
    seen = x[:, ::stride, ::stride].reshape(-1, x.shape[3])
    # In this order, as XLA's matrix product on a CPU is faster with the wider matrix on the right.
    accurate = jnp.promote_types(x.dtype, jnp.float32)
    cotangents = dy.reshape(-1, dy.shape[3])
    product = lax.dot_general(cotangents, seen, (((0,), (0,)), ((), ())), preferred_element_type=accurate)
    return product.T[None, None].astype(x.dtype)
