"""A data set of images in memory, which the files in `sets/` return."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fdg_jax.data.source import Source
from fdg_jax.errors import BadInput


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(Source):
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


def checked(dataset: Dataset) -> Dataset:
    """Returns the data set. Raises BadInput if an array, or a number about the arrays, is impossible."""
    d = dataset
    for part, images, labels in (("train", d.train_images, d.train_labels), ("test", d.test_images, d.test_labels)):
        found = f"data set {d.name}: {part}_images is {images.dtype}{list(images.shape)}"
        if images.dtype != np.uint8 or images.ndim != 4:
            raise BadInput(f"{found}. Images are uint8[N, H, W, C].")
        if images.shape[1:] != d.train_images.shape[1:]:
            raise BadInput(f"{found}, but train_images is uint8{list(d.train_images.shape)}. Give all images one size.")
        if labels.dtype != np.int32 or labels.shape != images.shape[:1]:
            fact = f"{found}, but {part}_labels is {labels.dtype}{list(labels.shape)}"
            raise BadInput(f"{fact}. Labels are int32[N], one for each image.")
        if not len(labels):
            raise BadInput(f"{found}: there is no image in it.")
        if labels.min() < 0 or labels.max() >= d.classes:
            fact = f"data set {d.name}: {part}_labels run from {labels.min()} to {labels.max()}"
            raise BadInput(f"{fact}. With {d.classes} classes labels are 0 to {d.classes - 1}.")
    channels = d.train_images.shape[3]
    for name, values in (("mean", d.mean), ("std", d.std)):
        if len(values) != channels or not all(0 < value < 1 for value in values):
            fact = f"data set {d.name}: {name} is {tuple(values)}"
            raise BadInput(f"{fact}. It needs {channels} numbers between 0 and 1, for images scaled to 0..1.")
    if not 0 <= d.pad < min(d.shape[:2]):
        raise BadInput(f"data set {d.name}: pad is {d.pad}. Use less than the {min(d.shape[:2])} pixels of an image.")
    return d
