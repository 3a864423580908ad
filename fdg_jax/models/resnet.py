"""The four-layer residual networks of He et al. (2016), in a form for small images and in the form for ImageNet.

The layers have 64, 128, 256 and 512 channels, and all but the first begin with stride 2. ResNet-18 has basic blocks,
ResNet-101 has bottlenecks, whose output is four times as wide. A bottleneck's stride is in its 3 x 3 convolution
(PyTorch's form, "v1.5"; in He et al. it is in the first 1 x 1 convolution). If the shape changes, the shortcut is a 1 x
1 convolution with batch norm. Strides and shortcuts are as in the authors' released code.

`resnet18` and `resnet101` have a 3 x 3 stem and no max-pooling. The authors' code has this form only; the paper trains
it on CIFAR and on Tiny-ImageNet. `resnet101_imagenet` has ImageNet's stem, 7 x 7 with stride 2 and max-pooling. The
paper times "ResNet-101 (ImageNet)" without saying which form it is. Deviation: the released code ends in 4 x 4 average
pooling, which covers the whole feature map of a 32 x 32 image only; here the pooling is global. Block 0 is the stem,
each residual block is a block, and the last block is the head. The four layers are the blocks 1-2, 3-4, 5-6 and 7-8 in
ResNet-18, and 1-3, 4-7, 8-30 and 31-33 in ResNet-101.
"""

from collections.abc import Sequence
from functools import reduce

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fdg_jax.layers import BatchNorm, Conv, Head, relu

RESNET101 = {"counts": (3, 4, 23, 3), "bottleneck": True}
NAMES = {
    "resnet18": {"counts": (2, 2, 2, 2)},
    "resnet101": RESNET101,
    "resnet101_imagenet": {**RESNET101, "imagenet": True},
}

# The splits of the authors' released code: its `layerN[a:b]`, as the numbers of the first blocks of stages 2..K. The
# two forms of ResNet-101 have the same blocks after the stem.
OF_RESNET101 = {
    2: (17,),  # L1 + L2 + L3[:9]
    3: (12, 23),  # L1 + L2 + L3[:4] / L3[4:15] / rest
    4: (9, 17, 25),  # L1 + L2 + L3[:1] / L3[1:9] / L3[9:17] / rest
    5: (7, 14, 21, 28),  # L1 + L2[:3] / L2[3:] + L3[:6] / L3[6:13] / L3[13:20] / rest
}
PAPER_SPLITS = {
    ("resnet18", 2): (5,),  # L1 + L2
    ("resnet18", 3): (3, 6),  # L1 / L2 + L3[:1] / rest
    **{(name, K): cuts for name in ("resnet101", "resnet101_imagenet") for K, cuts in OF_RESNET101.items()},
}


class Stem(nn.Module):
    """Image [b, h, w, 3] -> [b, h, w, 64], or [b, h / 4, w / 4, 64] in ImageNet's form."""

    imagenet: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        size, stride = (7, 2) if self.imagenet else (3, 1)
        x = Conv(64, size=size, stride=stride, name="conv")(x)
        x = relu(BatchNorm(name="norm")(x, train))
        if not self.imagenet:
            return x
        return lax.platform_dependent(x, cuda=maximum_of_slices, default=max_pool)


def max_pool(x: jax.Array) -> jax.Array:
    """The maximum over 3 x 3 pixels, with stride 2: [b, h, w, c] -> [b, h / 2, w / 2, c]."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))


def maximum_of_slices(x: jax.Array) -> jax.Array:
    """As `max_pool`, for a GPU, where the gradient of `max_pool` is summed in no fixed order. If several pixels are the
    maximum, they share the gradient. After a rectifier such pixels are mostly zeros, which get no gradient."""
    h, w = x.shape[1:3]
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    return reduce(jnp.maximum, [x[:, i : i + h : 2, j : j + w : 2] for i in range(3) for j in range(3)])


class Residual(nn.Module):
    """relu(x' + y), where x' is the shortcut and y two 3 x 3 convolutions, or 1 x 1, 3 x 3 and 1 x 1 (`bottleneck`).

    [b, h, w, c] -> [b, h / stride, w / stride, channels], four times the channels with a bottleneck.
    """

    channels: int
    stride: int = 1
    bottleneck: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        def convolved(x, number, channels, size=3, stride=1):
            x = Conv(channels, size=size, stride=stride, name=f"conv{number}")(x)
            return BatchNorm(name=f"norm{number}")(x, train)

        if self.bottleneck:
            width = 4 * self.channels
            y = relu(convolved(x, 1, self.channels, size=1))
            y = relu(convolved(y, 2, self.channels, stride=self.stride))
            y = convolved(y, 3, width, size=1)
        else:
            width = self.channels
            y = convolved(relu(convolved(x, 1, width, stride=self.stride)), 2, width)
        if self.stride > 1 or x.shape[-1] != width:
            x = Conv(width, size=1, stride=self.stride, name="shortcut")(x)
            x = BatchNorm(name="shortcut_norm")(x, train)
        return relu(x + y)


def blocks(classes: int, *, counts: Sequence[int], bottleneck: bool = False, imagenet: bool = False) -> list[nn.Module]:
    """The sum(counts) + 2 blocks. counts: the number of residual blocks in each layer."""
    residuals = [
        Residual(64 * 2**layer, 2 if layer > 0 and block == 0 else 1, bottleneck)
        for layer, count in enumerate(counts)
        for block in range(count)
    ]
    return [Stem(imagenet), *residuals, Head(classes)]
