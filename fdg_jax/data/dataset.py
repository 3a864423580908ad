"""A data set in memory: what the files in `sets/` return."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


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
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of an image."""
        return self.train_images.shape[1:]

    def first(self, n: int | None) -> Dataset:
        """This data set with the first n training images only; None for all."""
        return self._replace(train_images=self.train_images[:n], train_labels=self.train_labels[:n])

    def without_pixels(self) -> Dataset:
        """This data set for a process that needs labels only: black images, which take no memory."""
        black = [np.broadcast_to(np.uint8(0), images.shape) for images in (self.train_images, self.test_images)]
        return self._replace(train_images=black[0], test_images=black[1])
