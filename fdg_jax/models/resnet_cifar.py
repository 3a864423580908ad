"""The 6n+2 residual networks for small images (He et al. 2016, section 4.2), which the paper uses most.

Three layers of n residual blocks with 16, 32 and 64 channels; the first block of the second and third layer
has stride 2. The shortcut is option A: no parameters, every second pixel, and zeros for the missing channels.
Block numbers: 0 stem, 1..n first layer, n+1..2n second, 2n+1..3n third, 3n+1 head.

Deviation, on purpose: the authors' released code pools with `AvgPool2d(6)`, which sees only the top-left
6 x 6 of the 8 x 8 map. The paper does not mention this pooling. Here the pooling is global. The authors' pooling, and
their initialisation of convolutions, are in fdg_jax.models.resnet_cifar_fdg.
"""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from fdg_jax.layers import BatchNorm, Conv, Head, Initializer, he_fan_out, relu, three_layers

NAMES = {
    "resnet8": {"n": 1},
    "resnet20": {"n": 3},
    "resnet56": {"n": 9},
    "resnet110": {"n": 18},
    "resnet1202": {"n": 200},
}

# The splits of the authors' released code: its `layerN[a:b]`, as the numbers of the first blocks of stages 2..K.
PAPER_SPLITS = {
    ("resnet20", 2): (5,),  # L1 + L2[:1]
    ("resnet20", 3): (4, 7),  # one layer each
    ("resnet56", 2): (14,),  # L1 + L2[:4]
    ("resnet56", 3): (10, 19),  # one layer each
    ("resnet56", 4): (7, 14, 21),  # L1[:6] / L1[6:] + L2[:4] / L2[4:] + L3[:2] / rest
    ("resnet110", 2): (28,),  # L1 + L2[:9]
    ("resnet110", 3): (19, 37),  # one layer each
    ("resnet110", 4): (14, 28, 42),  # L1[:13] / L1[13:] + L2[:9] / L2[9:] + L3[:5] / rest
    ("resnet110", 5): (11, 22, 33, 44),  # L1[:10] / L1[10:] + L2[:3] / L2[3:14] / L2[14:] + L3[:7] / rest
    ("resnet1202", 2): (251,),  # L1 + L2[:50]
    ("resnet1202", 3): (201, 401),  # one layer each
    ("resnet1202", 4): (76, 251, 426),  # L1[:75] / L1[75:] + L2[:50] / L2[50:] + L3[:25] / rest
    ("resnet1202", 5): (61, 221, 281, 441),  # L1[:60] / L1[60:] + L2[:20] / L2[20:80] / L2[80:] + L3[:40] / rest
}


class Stem(nn.Module):
    """Image [b, h, w, 3] -> [b, h, w, 16]."""

    kernel_init: Initializer = he_fan_out

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return relu(BatchNorm(name="norm")(Conv(16, kernel_init=self.kernel_init, name="conv")(x), train))


class Residual(nn.Module):
    """relu(x' + norm(conv(relu(norm(conv(x)))))), where x' is the shortcut.

    [b, h, w, c] -> [b, h / stride, w / stride, channels].
    """

    channels: int
    stride: int = 1
    kernel_init: Initializer = he_fan_out

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        y = Conv(self.channels, stride=self.stride, kernel_init=self.kernel_init, name="conv1")(x)
        y = relu(BatchNorm(name="norm1")(y, train))
        y = Conv(self.channels, kernel_init=self.kernel_init, name="conv2")(y)
        y = BatchNorm(name="norm2")(y, train)
        missing = self.channels - x.shape[-1]
        shortcut = x[:, :: self.stride, :: self.stride]
        if missing:
            shortcut = jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), (missing // 2, missing - missing // 2)))
        return relu(shortcut + y)


def blocks(
    classes: int, *, n: int, kernel_init: Initializer = he_fan_out, head: Callable[[int], nn.Module] = Head
) -> list[nn.Module]:
    """The 3n + 2 blocks. n = 1, 3, 9, 18, 200 give ResNet-8, 20, 56, 110, 1202.

    kernel_init: draws the first kernels of the convolutions.
    head: head(classes) -> the last block.
    """
    residual = partial(Residual, kernel_init=kernel_init)
    return [Stem(kernel_init), *three_layers(residual, (16, 32, 64), n), head(classes)]
