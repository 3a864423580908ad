"""Augmentation of training images on the device: random crop, random mirroring, normalisation.

This is the paper's recipe for CIFAR, as one function that jit, vmap and lax.scan can trace. All randomness comes from
(seed, step): the i-th random words of this key decide how image i of a batch is cropped and mirrored. So every batch is
the same to the last bit if a run is repeated, resumed, or computed by another engine.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.data.order import check_seed
from fdg_jax.data.order import epoch_order as epoch_order  # so that users find it with the transforms


def train_transform(meta: Any, seed: Any) -> Callable[[jax.typing.ArrayLike, jax.typing.ArrayLike], jax.Array]:
    """Makes the transform of training images.

    Each image is padded by `meta.pad` black pixels on each side, cropped to its size at a random place, mirrored with
    probability 1/2 if `meta.flip`, and normalised as in `test_transform`. The paper says "random crop and flip" as in
    ResNet's CIFAR recipe: zero padding of 4, before normalisation.

    Arguments:
        meta: the data set, a fdg_jax.data.dataset.Source of images.
        seed: 0 .. 2**32-1; or uint32 [], traced.

    Returns: f(images [B, H, W, C] uint8, step int32 scalar) -> [B, H, W, C] float32.

    Raises:
        BadInput: the seed is outside that range.
    """
    if not isinstance(seed, jax.Array):
        check_seed(seed)
    normalise = test_transform(meta)
    if not (meta.pad or meta.flip):  # a stream crops and mirrors its images while it decodes them
        return lambda images, step: normalise(images)

    def transform(images, step):
        """The images [B, H, W, C] uint8 of batch `step` of the run, transformed: [B, H, W, C] float32."""
        images = jnp.asarray(images)
        batch, height, width, _ = images.shape
        down, right, mirrored = draw(seed, step, batch, meta.pad)
        if not meta.flip:
            mirrored = jnp.zeros_like(mirrored)
        margin = (meta.pad, meta.pad)
        padded = jnp.pad(images, ((0, 0), margin, margin, (0, 0)))
        # A gather of whole uint8 pixels is the fastest form on a CPU core. Slower, in this order, are a dynamic_slice
        # per image, one-hot products, lax.map, and a select per offset. The gather is over one image, under vmap, so
        # that the indices do not contain the image's number. If a batch is spread over devices (data parallel), each
        # device then crops its own part and nothing is sent.
        rows = down[:, None] + jnp.arange(height)  # [B, H]
        columns = jnp.arange(width)
        columns = jnp.where(mirrored[:, None], width - 1 - columns, columns) + right[:, None]  # [B, W]
        pixels = jax.vmap(lambda image, rows, columns: image[rows[:, None], columns])
        return normalise(pixels(padded, rows, columns))

    return transform


def test_transform(meta: Any) -> Callable[[jax.typing.ArrayLike], jax.Array]:
    """Makes the transform of test images: (image/255 - mean) / std for each channel.

    Arguments:
        meta: the data set, a fdg_jax.data.dataset.Source of images.

    Returns: f(images [..., C] uint8) -> [..., C] float32.
    """
    # Computed as (image - 255 mean) * (1 / 255 std): no compiler contracts a difference and then a product into a fused
    # multiply-add. `image * scale + bias` might be contracted in one program and not in another. Then the last bits
    # inside a scan could differ from those outside.
    mean = np.asarray(meta.mean, np.float64) * 255
    std = np.asarray(meta.std, np.float64) * 255
    mean, scale = mean.astype(np.float32), (1 / std).astype(np.float32)

    def transform(images):
        """Images [..., C] uint8, normalised: [..., C] float32."""
        return (jnp.asarray(images).astype(jnp.float32) - mean) * scale

    return transform


test_transform.__test__ = False  # its name is not meant for pytest


def draw(seed: Any, step, batch: int, pad: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The random choices for a batch: (rows [B] and columns [B] to cut off, 0..2 pad; mirrored [B] bool)."""
    # The generator is given by name, so that a user's `jax_default_prng_impl` does not change a run.
    key = jax.random.fold_in(jax.random.key(jnp.asarray(seed, jnp.uint32), impl="threefry2x32"), step)
    words = jax.random.bits(key, (batch, 3), jnp.uint32)
    # The remainder favours some offsets by less than 2**-29, which is too little to notice.
    offsets = (words[:, :2] % (2 * pad + 1)).astype(jnp.int32)
    return offsets[:, 0], offsets[:, 1], (words[:, 2] >> 31).astype(bool)
