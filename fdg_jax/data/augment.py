"""What a training image goes through on the device: random crop, random mirroring, normalisation.

The paper's recipe for CIFAR, as one function that jit, vmap and lax.scan may trace. All randomness comes
from (seed, step): image i of a batch is cropped and mirrored according to the i-th random words of that
key, whatever engine asks, however often and in whatever order. So a run can be repeated, resumed in its
middle, or computed by another engine, and every batch is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.data import Stream
from fdg_jax.data.dataset import Dataset
from fdg_jax.errors import BadInput


def train_transform(
    meta: Dataset | Stream, seed: int
) -> Callable[[jax.typing.ArrayLike, jax.typing.ArrayLike], jax.Array]:
    """Returns f(images, step): images [B, H, W, C] uint8, step an int32 scalar -> [B, H, W, C] float32.

    Each image gets `meta.pad` zero (black) pixels on each side, loses a uniformly chosen part of them again,
    is mirrored with probability 1/2 if `meta.flip`, and is normalised as in `test_transform`. The paper says
    "random crop and flip" as in ResNet's CIFAR recipe: zero padding of 4, before normalisation.
    Raises BadInput for a seed outside 0 .. 2**32-1, which JAX would cut to 32 bits or refuse.
    """
    check_seed(seed)
    normalise = test_transform(meta)
    if not (meta.pad or meta.flip):  # a stream's images: cropped and mirrored while they were decoded
        return lambda images, step: normalise(images)

    def transform(images, step):
        images = jnp.asarray(images)
        batch, height, width, _ = images.shape
        down, right, mirrored = draw(seed, step, batch, meta.pad)
        if not meta.flip:
            mirrored = jnp.zeros_like(mirrored)
        margin = (meta.pad, meta.pad)
        padded = jnp.pad(images, ((0, 0), margin, margin, (0, 0)))
        # A gather of whole pixels on uint8: on a CPU core the cheapest of the ways tried (then, in this order, a
        # dynamic_slice per image, one-hot products, lax.map, a select per offset). One of an image under vmap, not
        # one with the image's number among the indices: of a batch that is spread over devices (data parallel) each
        # then crops its own part, and nothing is sent.
        rows = down[:, None] + jnp.arange(height)  # [B, H]
        columns = jnp.arange(width)
        columns = jnp.where(mirrored[:, None], width - 1 - columns, columns) + right[:, None]  # [B, W]
        pixels = jax.vmap(lambda image, rows, columns: image[rows[:, None], columns])
        return normalise(pixels(padded, rows, columns))

    return transform


def test_transform(meta: Dataset | Stream) -> Callable[[jax.typing.ArrayLike], jax.Array]:
    """Returns f(images): [..., C] uint8 -> [..., C] float32, (image/255 - mean) / std per channel."""
    # Computed as (image - 255 mean) * (1 / 255 std): a difference then a product, which no compiler may
    # contract into a fused multiply-add. `image * scale + bias` could be, here and not there, and would
    # then end in other last bits inside a scan than alone.
    mean = np.asarray(meta.mean, np.float64) * 255
    std = np.asarray(meta.std, np.float64) * 255
    mean, scale = mean.astype(np.float32), (1 / std).astype(np.float32)

    def transform(images):
        return (jnp.asarray(images).astype(jnp.float32) - mean) * scale

    return transform


test_transform.__test__ = False  # its name is not meant for pytest


def draw(seed: int, step, batch: int, pad: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The random choices of a batch: rows [B] and columns [B] cut off, 0..2 pad, and mirrored [B] bool."""
    # The generator is named so that a user's `jax_default_prng_impl` doesn't change a run.
    key = jax.random.fold_in(jax.random.key(np.uint32(seed), impl="threefry2x32"), step)
    words = jax.random.bits(key, (batch, 3), jnp.uint32)
    # The remainder favours some offsets by less than 2**-29: far below what any number of images shows.
    offsets = (words[:, :2] % (2 * pad + 1)).astype(jnp.int32)
    return offsets[:, 0], offsets[:, 1], (words[:, 2] >> 31).astype(bool)


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation [n] int32 of the training images, given by (seed, epoch) alone.

    From NumPy's RandomState, whose stream is frozen for good, so that a run resumed under a newer NumPy
    sees the same batches. Raises BadInput for a seed outside 0 .. 2**32-1.
    """
    check_seed(seed)
    return np.random.RandomState([seed, epoch]).permutation(n).astype(np.int32)


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise BadInput(f"the seed is {seed}, but must be between 0 and {2**32 - 1}.")
