"""A data set of images in memory: what the files in `sets/` return. Its members are those of `Source`, and more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fdg_jax.data.source import images_described


class Dataset(NamedTuple):
    """A decoded data set with N training and M test images of height H, width W and C channels."""

    name: str
    train_images: np.ndarray  # [N, H, W, C] uint8
    train_labels: np.ndarray  # [N] int32
    test_images: np.ndarray  # [M, H, W, C] uint8
    test_labels: np.ndarray  # [M] int32
    classes: int  # labels are 0 .. classes-1
    mean: tuple[float, ...]  # [C] of the training images scaled to 0..1
    std: tuple[float, ...]  # [C]
    pad: int  # zero pixels added on each side before the random crop
    flip: bool  # whether a mirrored image still shows the same class
    note: str = ""  # what the user must know about this run's data; "" for nothing
    fingerprint: dict[str, Any] | None = None  # of the whole data set (see `fingerprint`), once computed

    @property
    def unit(self) -> str:
        """What speed is counted in."""
        return "images"

    @property
    def per_example(self) -> int:
        """Every example is one image."""
        return 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of an image."""
        return self.train_images.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        """Of the images: uint8."""
        return self.train_images.dtype

    @property
    def labels_shape(self) -> tuple[int, ...]:
        """An image has one label."""
        return ()

    @property
    def labels_dtype(self) -> np.dtype:
        """Of the labels: int32."""
        return self.train_labels.dtype

    @property
    def train_inputs(self) -> np.ndarray:
        """The training images."""
        return self.train_images

    @property
    def test_inputs(self) -> np.ndarray:
        """The test images."""
        return self.test_images

    def first(self, n: int | None) -> Dataset:
        """This data set with the first n training images only; None for all."""
        return self._replace(train_images=self.train_images[:n], train_labels=self.train_labels[:n])

    def held_out(self, n: int) -> Dataset:
        """This data set with the last n training images as its test images, and trained on the others."""
        left = len(self.train_images) - n
        return self.first(left)._replace(test_images=self.train_images[left:], test_labels=self.train_labels[left:])

    def without_inputs(self) -> Dataset:
        """This data set for a process that needs labels only: black images, which take no memory."""
        black = [np.broadcast_to(np.uint8(0), images.shape) for images in (self.train_images, self.test_images)]
        return self._replace(train_images=black[0], test_images=black[1])

    def train_transform(self, seed: int) -> Callable[[Any, Any], Any]:
        """Crops, mirrors and normalises (fdg_jax.data.augment)."""
        from fdg_jax.data import augment

        return augment.train_transform(self, seed)

    def test_transform(self) -> Callable[[Any], Any]:
        """Normalises (fdg_jax.data.augment)."""
        from fdg_jax.data import augment

        return augment.test_transform(self)

    def described(self) -> str:
        """How many images there are, and of which size."""
        return images_described(len(self.train_images), len(self.test_images), self.shape, self.classes)

    def measures(self, test_loss: float | None) -> dict[str, float | None]:
        """Images have none but loss and error."""
        return {}
