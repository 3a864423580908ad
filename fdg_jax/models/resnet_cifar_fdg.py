"""The 6n+2 residual networks, each with one choice of the FDG authors' released code.

`resnet8_fdg_init` initialises convolutions by PyTorch's default, as that code does: uniform in +-1/sqrt(fan_in). With
equally many features and channels, this standard deviation is 2.4 times smaller than ours.

The head of `resnet8_fdg_pool` averages only a part of the last feature map. The authors' `AvgPool2d(6)` averages the
top left 6 x 6 of the 8 x 8 map that 32 x 32 images end in, and drops the rest. Here the window has three quarters of
the map's height and width, rounded down, at any image size. Images of 16 x 16 end in a 4 x 4 map, where a window of 6
does not fit; the window is then 3 x 3.

Every other depth of fdg_jax.models.resnet_cifar has both forms, too, such as `resnet20_fdg_init`. They exist for
`experiments.differences`, which measures what each choice changes. Blocks and cuts are those of `resnet8`.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from fdg_jax.layers import Head, torch_linear
from fdg_jax.models import resnet_cifar
from fdg_jax.models.resnet_cifar import blocks  # noqa: F401  (a family has it)


class TopLeftHead(Head):
    """`Head` on the top left corner, three quarters of height and width: [b, h, w, c] -> logits [b, classes]."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        height, width = (3 * side // 4 for side in x.shape[1:3])
        return super().__call__(x[:, :height, :width], train)


FORMS: dict[str, dict[str, Any]] = {"_fdg_init": {"kernel_init": torch_linear}, "_fdg_pool": {"head": TopLeftHead}}
NAMES = {
    "resnet8_fdg_init": {**resnet_cifar.NAMES["resnet8"], **FORMS["_fdg_init"]},
    "resnet8_fdg_pool": {**resnet_cifar.NAMES["resnet8"], **FORMS["_fdg_pool"]},
}
PATTERNS = ("resnet<d>_fdg_init", "resnet<d>_fdg_pool")
PAPER_SPLITS = {(f"{name}{form}", K): cuts for (name, K), cuts in resnet_cifar.PAPER_SPLITS.items() for form in FORMS}


def arguments(name: str) -> Mapping[str, Any] | None:
    """The arguments of `blocks` for every network of fdg_jax.models.resnet_cifar in either form; None for any other."""
    for form, changed in FORMS.items():
        depth = resnet_cifar.NAMES.get(name.removesuffix(form))
        if name.endswith(form) and depth:
            return {**depth, **changed}
    return None
