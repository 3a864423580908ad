"""MobileNet v1 (Howard et al. 2017) for small images: depthwise separable convolutions, one after another.

This is the network that the authors' later repository, Accumulated-Decoupled-Learning, calls `MobileNetv2()`: it
has no inverted residuals, so it is version 1. With the 200 classes of Tiny-ImageNet it has 3,411,976 parameters. This
fits the paper's "MobileNet v2 (3.40M)" better than version 2 does, which has 2,480,072 with 200 classes and 3,504,872
with 1000. It is not known which version the paper trained, so both are offered, each under its own name.

Deviation: the released code ends in 2 x 2 average pooling. For 32 x 32 images this covers the whole feature map. For
the 64 x 64 pixels of Tiny-ImageNet, the linear layer would get four times too many numbers. Here the pooling
is global.
Block numbers: 0 stem, 1..13 separable convolutions, 14 head.
"""

import flax.linen as nn
import jax

from fdg_jax.layers import BatchNorm, Conv, Head, relu

NAMES = {"mobilenet_v1": {}}

# The split of the released code: its `layers[a:b]`, as the number of the first block of stage 2.
PAPER_SPLITS = {("mobilenet_v1", 2): (7,)}  # conv + layers[:6]

# Channels and stride of each separable convolution (Howard et al., table 1, without the stride of the stem).
LAYERS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


class Stem(nn.Module):
    """Image [b, h, w, 3] -> [b, h, w, 32]."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return relu(BatchNorm(name="norm")(Conv(32, name="conv")(x), train))


class Separable(nn.Module):
    """A depthwise 3 x 3 convolution, then a 1 x 1 convolution; norm and relu after both.

    [b, h, w, c] -> [b, h / stride, w / stride, channels].
    """

    channels: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = Conv(x.shape[-1], stride=self.stride, groups=x.shape[-1], name="filter")(x)
        x = relu(BatchNorm(name="filter_norm")(x, train))
        x = Conv(self.channels, size=1, name="mix")(x)
        return relu(BatchNorm(name="mix_norm")(x, train))


def blocks(classes: int) -> list[nn.Module]:
    """The 15 blocks."""
    return [Stem(), *(Separable(channels, stride) for channels, stride in LAYERS), Head(classes)]
