"""MobileNet v2 (Sandler et al. 2018): inverted residuals, wide inside the blocks and narrow between them.

A block widens its input by a 1 x 1 convolution, applies a depthwise 3 x 3 convolution, and ends narrow in a 1 x 1
convolution without a relu. Input and output are added if their shapes agree. Strides do not change the number of
parameters. Both forms have 3,504,872 with 1000 classes (Sandler et al. print 3.4M) and 2,480,072 with the 200 classes
of Tiny-ImageNet. The paper trains a "MobileNet v2 (3.40M)" on Tiny-ImageNet. The authors' code uses that name for
version 1, which has 3.41M with 200 classes: see fdg_jax.models.mobilenet_v1.

`mobilenet_v2` is our own form for small images, since the authors' code has no version 2. Its stem and its layer of 24
channels have stride 1, so that 64 x 64 pixels end as an 8 x 8 map instead of 2 x 2. `mobilenet_v2_imagenet` is the
original. Deviation: no dropout before the last layer, which neither paper mentions. Block numbers: 0 stem, 1..17
inverted residuals, 18 head (the last 1 x 1 convolution first).
"""

import flax.linen as nn
import jax

from fdg_jax.layers import BatchNorm, Conv, Head, relu6

NAMES = {"mobilenet_v2": {}, "mobilenet_v2_imagenet": {"imagenet": True}}
PAPER_SPLITS: dict[tuple[str, int], tuple[int, ...]] = {}  # the authors' code has no such network

# Sandler et al., table 2: expansion, channels, blocks, stride of the first of them.
LAYERS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class ConvNorm(nn.Module):
    """Convolution, batch norm and, if `active`, relu6: [b, h, w, c] -> [b, h / stride, w / stride, channels]."""

    channels: int
    size: int = 1
    stride: int = 1
    groups: int = 1
    active: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = Conv(self.channels, size=self.size, stride=self.stride, groups=self.groups, name="conv")(x)
        x = BatchNorm(name="norm")(x, train)
        return relu6(x) if self.active else x


class Residual(nn.Module):
    """x + narrow(filter(widen(x))), without x if the shape changes, and without widening if expansion is 1.

    [b, h, w, c] -> [b, h / stride, w / stride, channels]; inside there are expansion * c channels.
    """

    expansion: int
    channels: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        inside = self.expansion * x.shape[-1]
        y = ConvNorm(inside, name="widen")(x, train) if self.expansion > 1 else x
        y = ConvNorm(inside, size=3, stride=self.stride, groups=inside, name="filter")(y, train)
        y = ConvNorm(self.channels, active=False, name="narrow")(y, train)
        return x + y if self.stride == 1 and x.shape[-1] == self.channels else y


class ConvHead(nn.Module):
    """The last 1 x 1 convolution, then the head: [b, h, w, c] -> logits [b, classes]."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return Head(self.classes, name="head")(ConvNorm(1280, name="last")(x, train), train)


def blocks(classes: int, *, imagenet: bool = False) -> list[nn.Module]:
    """The 19 blocks. imagenet: the original strides."""
    residuals = []
    for expansion, channels, count, stride in LAYERS:
        first = 1 if channels == 24 and not imagenet else stride
        residuals += [Residual(expansion, channels, first if block == 0 else 1) for block in range(count)]
    return [ConvNorm(32, size=3, stride=2 if imagenet else 1), *residuals, ConvHead(classes)]
