"""Wide residual networks WRN-d-k (Zagoruyko and Komodakis 2016): few, wide, pre-activation residual blocks.

d = 6n + 4 layers; three layers of n blocks with 16k, 32k and 64k channels. If the shape changes, the shortcut is a 1 x
1 convolution of the activated input. There is no dropout, since the paper does not mention it. The table has the models
that the paper and the benchmarks use; `wrn<d>_<k>` gives any depth and width. The network of this name in the FDG
authors' released code differs; it is in fdg_jax.models.wrn_fdg. Block numbers: 0 stem, 1..n first layer, n+1..2n
second, 2n+1..3n third, 3n+1 head (norm and relu first).
"""

import re
from typing import Any

import flax.linen as nn
import jax

from fdg_jax.layers import MOMENTUM, BatchNorm, Conv, Head, relu, three_layers

NAMES = {"wrn16_4": {"n": 2, "k": 4}, "wrn28_10": {"n": 4, "k": 10}}
PATTERNS = ("wrn<d>_<k> (d = 6n + 4)",)  # the other names that `arguments` knows, as --help shows them

# The splits of the authors' released code: its `layerN[a:b]`, as the numbers of the first blocks of stages 2..K.
PAPER_SPLITS = {
    ("wrn28_10", 2): (7,),  # conv + L1 + L2[:2]
    ("wrn28_10", 3): (5, 9),  # one layer each
    ("wrn28_10", 4): (4, 7, 10),  # L1[:3] / L1[3:] + L2[:2] / L2[2:] + L3[:1] / rest
}


def arguments(name: str) -> dict[str, Any] | None:
    """The arguments of `blocks` for wrn<d>_<k> with d = 6n + 4, n >= 1, k >= 1; None for any other name."""
    match = re.fullmatch(r"wrn([1-9]\d{0,3})_([1-9]\d?)", name)
    depth, k = (int(match[1]), int(match[2])) if match else (0, 0)
    return {"n": (depth - 4) // 6, "k": k} if depth >= 10 and depth % 6 == 4 else None


class Stem(nn.Module):
    """Image [b, h, w, 3] -> [b, h, w, 16]. No norm: the first block begins with one."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        del train
        return Conv(16, name="conv")(x)


class Residual(nn.Module):
    """x' + conv(relu(norm(conv(relu(norm(x)))))), where x' is the shortcut.

    [b, h, w, c] -> [b, h / stride, w / stride, channels].
    """

    channels: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        active = relu(BatchNorm(name="norm1")(x, train))
        y = Conv(self.channels, stride=self.stride, name="conv1")(active)
        y = Conv(self.channels, name="conv2")(relu(BatchNorm(name="norm2")(y, train)))
        if self.stride == 1 and x.shape[-1] == self.channels:
            return x + y
        return Conv(self.channels, size=1, stride=self.stride, name="shortcut")(active) + y


class NormHead(nn.Module):
    """The final norm and relu, then the head: [b, h, w, c] -> logits [b, classes]. momentum: the norm's."""

    classes: int
    momentum: float = MOMENTUM

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return Head(self.classes, name="head")(relu(BatchNorm(self.momentum, name="norm")(x, train)), train)


def blocks(classes: int, *, n: int, k: int) -> list[nn.Module]:
    """The 3n + 2 blocks. n = 4, k = 10 give WRN-28-10."""
    return [Stem(), *three_layers(Residual, (16 * k, 32 * k, 64 * k), n), NormHead(classes)]
