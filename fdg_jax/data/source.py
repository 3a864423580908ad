"""The interface of a data set: its examples, their unit, and the transforms to a network's input.

A `Dataset` (images) and a `Text` (tokens) hold their examples as arrays; a `Stream` decodes images while the training
runs. All are a `Source`, so that other code works with images and tokens alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np


class Source:
    """A data set of N training and M test examples: of images, unless a subclass says otherwise.

    name: its name for `--dataset`.
    classes: labels are 0 .. classes-1.
    note: what the user must know about this run's data; "" for nothing.
    fingerprint: of the whole data set (fdg_jax.data.fingerprint), once computed.
    unit: the unit of speed: "images" or "tokens". per_example: how many units an example has.
    shape, dtype: of an example's stored input. labels_shape, labels_dtype: of its labels.
    train_inputs, test_inputs: the inputs of the examples, with a length.
    """

    name: str
    classes: int
    note: str
    fingerprint: dict[str, Any] | None
    train_images: Any
    test_images: Any
    unit: ClassVar[str] = "images"
    dtype: ClassVar[np.dtype] = np.dtype(np.uint8)
    labels_dtype: ClassVar[np.dtype] = np.dtype(np.int32)

    @property
    def per_example(self) -> int:
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def labels_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def train_inputs(self) -> Any:
        return self.train_images

    @property
    def test_inputs(self) -> Any:
        return self.test_images

    def _replace(self, **changes: Any) -> Self:
        """This data set with other fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def first(self, n: int | None) -> Self:
        """This data set with the first n training examples only; None for all."""
        raise NotImplementedError

    def held_out(self, n: int) -> Self:
        """This data set with its last n training examples as the test examples, and the others for training."""
        raise NotImplementedError

    def without_inputs(self) -> Self:
        """This data set for a process that needs labels only: inputs of zeros, which take no memory."""
        raise NotImplementedError

    def train_transform(self, seed: int) -> Callable[[Any, Any], Any]:
        """The traceable function f(inputs [B, ...], number of the batch) -> the network's input. Its randomness
        (augmentation) depends only on the seed and the batch. Raises BadInput for a seed out of range."""
        from fdg_jax.data import augment

        return augment.train_transform(self, seed)  # type: ignore[arg-type]

    def test_transform(self) -> Callable[[Any], Any]:
        """The traceable function f(inputs [B, ...]) -> the network's input."""
        from fdg_jax.data import augment

        return augment.test_transform(self)  # type: ignore[arg-type]

    def described(self) -> str:
        """A description, such as: 1,438 training and 359 test images 32x32x3, 10 classes."""
        train, test = len(self.train_images), len(self.test_images)
        return f"{train:,} training and {test:,} test images {'x'.join(map(str, self.shape))}, {self.classes} classes"

    def measures(self, test_loss: float | None) -> dict[str, float | None]:
        """Further measures computed from a test loss (in nats): name in the files of a run -> value."""
        return {}
