"""The layers of a transformer: norms, causal attention, rotary positions.

All take [batch, T, width] in float32 or bfloat16 and return that dtype. They have biases only where a model asks for
them. Sums over the width, and the softmax, are float32. For the backward pass they keep only their arguments, and
arrays computed from the inputs. So an engine can put other weights into a stashed VJP closure (see
fdg_jax.layers).
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fdg_jax.layers import EMBED, HEADS, Initializer, named, sum_dtype

EPSILON_RMS = 1e-6
EPSILON_LAYER = 1e-5  # PyTorch's, and so GPT-2's
ROTARY_BASE = 10_000.0  # the longest wavelength in tokens, divided by 2 pi


class RMSNorm(nn.Module):
    """x / rms(x) * scale over the last axis (Zhang and Sennrich 2019). Flax's norm keeps its scale in the closure."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return rms_norm(x, self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32))


class LayerNorm(nn.Module):
    """(x - mean) / std * scale, and a bias if asked for, over the last axis (Ba et al. 2016).

    It is the root-mean-square norm of the centred x, so the closure keeps the centred x (in x's dtype) instead of x.
    """

    bias: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        accurate = x.astype(sum_dtype(x))
        centred = (accurate - jnp.mean(accurate, -1, keepdims=True)).astype(x.dtype)
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        y: Any = rms_norm(centred, scale, EPSILON_LAYER)
        return plus_bias(self, y) if self.bias else y


def plus_bias(module: nn.Module, y: jax.Array, axis: str | None = None) -> jax.Array:
    """y [..., features] plus the module's parameter `bias`, initially zero. Its gradient is summed in float32. axis:
    the name of the bias's axis."""
    bias = module.param("bias", named(nn.initializers.zeros, axis), (y.shape[-1],), jnp.float32)
    return (y.astype(sum_dtype(y)) + bias).astype(y.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float = EPSILON_RMS) -> jax.Array:
    """x [..., c] divided by its root mean square, times scale [c]. Its residuals are x and one number per row."""
    return _rms_forward(x, scale, epsilon)[0]


def _rms_forward(x, scale, epsilon):
    accurate = x.astype(sum_dtype(x))
    inverse = lax.rsqrt(jnp.mean(jnp.square(accurate), -1, keepdims=True) + epsilon)
    return (accurate * inverse * scale).astype(x.dtype), (x, inverse, scale)


def _rms_backward(epsilon, residuals, dy):
    del epsilon
    x, inverse, scale = residuals
    dy, unit = dy.astype(sum_dtype(x)), x.astype(sum_dtype(x)) * inverse
    dscale = jnp.sum(dy * unit, tuple(range(x.ndim - 1)))
    dunit = dy * scale
    dx = inverse * (dunit - unit * jnp.mean(dunit * unit, -1, keepdims=True))
    return dx.astype(x.dtype), dscale.astype(scale.dtype)


rms_norm.defvjp(_rms_forward, _rms_backward)


class Dense(nn.Module):
    """x times a matrix, plus a bias if asked for: [..., c] -> [..., features]. Flax's names: `kernel`, `bias`.

    axes: the names of the matrix's axes (fdg_jax.layers).
    """

    features: int
    kernel_init: Initializer
    bias: bool = False
    axes: tuple[str | None, str | None] = (None, None)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        draw = named(self.kernel_init, *self.axes)
        y = product(x, self.param("kernel", draw, (x.shape[-1], self.features), jnp.float32))
        return plus_bias(self, y, self.axes[1]) if self.bias else y


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [..., c] times kernel [c, features], in x's dtype.

    All leading axes are first merged into one. Otherwise the gradient of the kernel would need a transposed dy. XLA on
    a CPU would copy dy, which takes longer than the product. The results are equal bit for bit.
    `benchmarks/block_cost.py` measures what this gains.
    """
    rows = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
    return rows.reshape(*x.shape[:-1], kernel.shape[-1])


class CausalAttention(nn.Module):
    """Multi-head attention in which a token sees itself and the tokens before it: [b, T, c] -> [b, T, c].

    heads: the number of heads, a divisor of c.
    rotary: whether queries and keys are rotated by their positions (RoPE); c / heads must then be even.
    out_init: draws the first weights of the last layer.
    kv_heads: the number of heads of keys and values, each shared by heads / kv_heads heads of queries (Ainslie et al.
        2023); None: as many as `heads`.
    bias: whether both matrices of the layer have a bias.
    qk_norm: whether each head's queries and keys have a root-mean-square norm, before the rotation.

    Queries, keys and values are the columns of one matrix, in this order, as in GPT-2.
    """

    heads: int
    rotary: bool
    kernel_init: Initializer
    out_init: Initializer
    kv_heads: int | None = None
    bias: bool = False
    qk_norm: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        b, T, c = x.shape
        h, several = c // self.heads, self.kv_heads or self.heads
        dense = Dense((self.heads + 2 * several) * h, self.kernel_init, self.bias, (EMBED, HEADS), name="qkv")
        q, k, v = jnp.split(dense(x).reshape(b, T, -1, h), (self.heads, self.heads + several), axis=2)
        if self.qk_norm:
            q, k = RMSNorm(name="q_norm")(q), RMSNorm(name="k_norm")(k)
        if self.rotary:
            q, k = rotated(q), rotated(k)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn" if is_fused(q) else "xla")
        return Dense(c, self.out_init, self.bias, (HEADS, EMBED), name="out")(y.reshape(b, T, c))


def is_fused(q: jax.Array) -> bool:
    """Whether cuDNN has a fused kernel for attention with queries like q [b, T, heads, h]. This kernel keeps no [T, T]
    array; it exists for bfloat16 on NVIDIA's GPUs from Ampere on. JAX uses it only if it is asked to."""
    device = jax.devices()[0]
    nvidia = device.platform == "gpu" and "cuda" in device.client.platform_version
    fits = q.dtype == jnp.bfloat16 and q.shape[-1] % 8 == 0 and q.shape[-1] <= 128
    return fits and nvidia and float(device.compute_capability) >= 8


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
