"""The layers that the convolutional families share, in one place, so that one cure of a slow layer cures all.

All take and return float32 [batch, height, width, channel]. Convolutions have no bias (a batch norm follows),
pad by k // 2 on both sides as the reference implementations do (Flax's "SAME" pads a stride-2 convolution
on one side only), and start from He's normal distribution over the fan-out. Nothing here computes at import.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

he_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
# PyTorch's default for a linear layer, which the authors' code leaves as it is: uniform in +-1/sqrt(fan_in).
torch_linear = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Conv(nn.Module):
    """A k x k convolution without bias: [b, h, w, c] -> [b, h / stride, w / stride, features]."""

    features: int
    size: int = 3
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", he_fan_out, shape, jnp.float32)
        pad = (self.size // 2, self.size // 2)
        return lax.conv_general_dilated(
            x, kernel, (self.stride, self.stride), (pad, pad), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )


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
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, channels, jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, channels, jnp.float32)
        if not train:
            return normalise(x, running_mean.value, running_var.value, scale, bias)
        mean = jnp.mean(x, axis=(0, 1, 2))
        var = jnp.maximum(jnp.mean(jnp.square(x), axis=(0, 1, 2)) - jnp.square(mean), 0.0)
        if not self.is_initializing():
            running_mean.value = 0.9 * running_mean.value + 0.1 * mean
            running_var.value = 0.9 * running_var.value + 0.1 * var
        return normalise(x, mean, var, scale, bias)


def normalise(x: jax.Array, mean: jax.Array, var: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """(x - mean) / sqrt(var + 1e-5) * scale + bias, all but x [channel]."""
    return (x - mean) * (lax.rsqrt(var + 1e-5) * scale) + bias


class Head(nn.Module):
    """Global average pooling and a linear layer: [b, h, w, c] -> logits [b, classes]."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        del train
        return nn.Dense(self.classes, kernel_init=torch_linear, name="dense")(jnp.mean(x, axis=(1, 2)))
