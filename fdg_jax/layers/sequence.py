"""The layers of a transformer: root-mean-square norm, causal attention, rotary positions.

All take [batch, T, width] in float32 or bfloat16, return that dtype, and have no biases. Sums over the width, and the
softmax, are float32. For the backward pass they keep only arguments and arrays made of the inputs, so that an engine
can put other weights into a stashed VJP closure (see fdg_jax.layers.basic).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fdg_jax.layers.basic import Initializer, sum_dtype

EPSILON_RMS = 1e-6
ROTARY_BASE = 10_000.0  # the longest wavelength, in tokens and over 2 pi


class RMSNorm(nn.Module):
    """x / rms(x) * scale over the last axis (Zhang and Sennrich 2019). Flax's norm keeps its scale in the closure."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return rms_norm(x, self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32))


@jax.custom_vjp
def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x [..., c] over its root mean square, times scale [c]. Its residuals are x and one number per row."""
    return _rms_forward(x, scale)[0]


def _rms_forward(x, scale):
    accurate = x.astype(sum_dtype(x))
    inverse = lax.rsqrt(jnp.mean(jnp.square(accurate), -1, keepdims=True) + EPSILON_RMS)
    return (accurate * inverse * scale).astype(x.dtype), (x, inverse, scale)


def _rms_backward(residuals, dy):
    x, inverse, scale = residuals
    dy, unit = dy.astype(sum_dtype(x)), x.astype(sum_dtype(x)) * inverse
    dscale = jnp.sum(dy * unit, tuple(range(x.ndim - 1)))
    dunit = dy * scale
    dx = inverse * (dunit - unit * jnp.mean(dunit * unit, -1, keepdims=True))
    return dx.astype(x.dtype), dscale.astype(scale.dtype)


rms_norm.defvjp(_rms_forward, _rms_backward)


class Dense(nn.Module):
    """x times a matrix, without a bias: [..., c] -> [..., features]. Its matrix is called `kernel`, as Flax's is."""

    features: int
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return product(x, self.param("kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32))


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [..., c] times kernel [c, features], in x's dtype.

    All leading axes are first merged into one. Otherwise the derivative with respect to the matrix would be transposed,
    and XLA on a CPU would copy dy for it, which takes longer than the product. The results are equal bit for bit.
    `benchmarks/block_cost.py` measures what this gains.
    """
    rows = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
    return rows.reshape(*x.shape[:-1], kernel.shape[-1])


class CausalAttention(nn.Module):
    """Multi-head attention in which a token sees itself and those before it: [b, T, c] -> [b, T, c].

    heads: how many; c is a multiple of it, and c / heads is even.
    rotary: whether queries and keys are turned by their positions.
    out_init: draws the first weights of the last layer.
    """

    heads: int
    rotary: bool
    kernel_init: Initializer
    out_init: Initializer

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        b, T, c = x.shape
        dense = Dense(3 * c, self.kernel_init, name="qkv")
        q, k, v = jnp.moveaxis(dense(x).reshape(b, T, 3, self.heads, c // self.heads), 2, 0)
        if self.rotary:
            q, k = rotated(q), rotated(k)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, T, c)
        return Dense(c, self.out_init, name="out")(y)


def rotated(x: jax.Array) -> jax.Array:
    """Turns each pair of channels (i, i + h/2) by an angle proportional to the position (RoPE, Su et al. 2021).

    x: [b, T, heads, h].
    """
    half = x.shape[-1] // 2
    cos, sin = rotation(x.shape[1], half)
    a, b = x[..., :half].astype(sum_dtype(x)), x[..., half:].astype(sum_dtype(x))
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)


def rotation(T: int, half: int) -> tuple[jax.Array, jax.Array]:
    """`plain_rotation`, computed while tracing, as constants. XLA would compute it again for each example and head."""
    with jax.ensure_compile_time_eval():
        return plain_rotation(T, half)


def plain_rotation(T: int, half: int) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of the angles, each [T, 1, half]."""
    angles = jnp.arange(T)[:, None] * ROTARY_BASE ** (-jnp.arange(half) / half)
    return jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
