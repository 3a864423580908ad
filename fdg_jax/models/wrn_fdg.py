"""Wide residual networks as the FDG authors' released code has them: `wrn28_10_fdg`, any `wrn<d>_<k>_fdg`.

The paper's "WRN-28-10" was trained and timed with this code. It differs from the network of Zagoruyko and Komodakis,
which is `wrn28_10` (fdg_jax.models.wrn), in four points:

- every convolution has a bias;
- the stride is in a block's second convolution, so the first one still works on the larger map;
- the shortcut is a 1 x 1 convolution of the block's input x, not of the normalised and activated x;
- the last batch norm has PyTorch's momentum 0.9, so its running statistics keep only a tenth of their old value at each
  batch. Those of the other norms keep nine tenths. This changes evaluation only.

So WRN-28-10 has 36,489,290 parameters (10 classes) instead of 36,479,194, and takes 5.95 instead of 5.24 billion
multiply-adds for an image of 32 x 32 pixels. Convolutions are initialised as everywhere in this package
(fdg_jax.layers) and their biases are zero; PyTorch draws both from its default ranges.
Block numbers are those of `wrn28_10`: 0 stem, 1..n first layer, n+1..2n second, 2n+1..3n third, 3n+1 head.
"""

from typing import Any

import flax.linen as nn
import jax

from fdg_jax.layers import BatchNorm, Conv, relu, three_layers
from fdg_jax.models import wrn

SUFFIX = "_fdg"
NAMES = {"wrn28_10_fdg": wrn.NAMES["wrn28_10"]}
PATTERNS = ("wrn<d>_<k>_fdg (d = 6n + 4)",)  # the other names that `arguments` knows, as --help shows them
PAPER_SPLITS = {(f"{name}{SUFFIX}", K): cuts for (name, K), cuts in wrn.PAPER_SPLITS.items()}
LAST_MOMENTUM = 0.1  # PyTorch calls it 0.9


def arguments(name: str) -> dict[str, Any] | None:
    """The arguments of `blocks` for wrn<d>_<k>_fdg with d = 6n + 4, n >= 1, k >= 1; None for any other name."""
    return wrn.arguments(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None


class Stem(nn.Module):
    """Image [b, h, w, 3] -> [b, h, w, 16]. No norm: the first block begins with one."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        del train
        return Conv(16, bias=True, name="conv")(x)


class Residual(nn.Module):
    """x' + conv(relu(norm(conv(relu(norm(x)))))), where x' is the shortcut.

    [b, h, w, c] -> [b, h / stride, w / stride, channels].
    """

    channels: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        y = relu(BatchNorm(name="norm1")(x, train))
        y = Conv(self.channels, bias=True, name="conv1")(y)
        y = relu(BatchNorm(name="norm2")(y, train))
        y = Conv(self.channels, stride=self.stride, bias=True, name="conv2")(y)
        if self.stride > 1 or x.shape[-1] != self.channels:
            x = Conv(self.channels, size=1, stride=self.stride, bias=True, name="shortcut")(x)
        return x + y


def blocks(classes: int, *, n: int, k: int) -> list[nn.Module]:
    """The 3n + 2 blocks. n = 4, k = 10 give WRN-28-10."""
    residuals = three_layers(Residual, (16 * k, 32 * k, 64 * k), n)
    return [Stem(), *residuals, wrn.NormHead(classes, momentum=LAST_MOMENTUM)]
