"""What the rooms above know of a data set: its examples, what they are made of, and how they enter a network.

A `Dataset` (images) and a `Text` (tokens) hold their examples as arrays, a `Stream` decodes them while the training
runs. All three have these members, so that whatever is above works with images and tokens alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Protocol

import numpy as np


class Source(Protocol):
    """A data set of N training and M test examples.

    name: what `--dataset` calls it.
    unit: what speed is counted in: "images" or "tokens". per_example: how many of them an example has.
    shape, dtype: of an example's input, as it is stored. labels_shape, labels_dtype: of its labels.
    classes: labels are 0 .. classes-1.
    note: what the user must know about this run's data; "" for nothing.
    fingerprint: of the whole data set (fdg_jax.data.fingerprint), once computed.
    """

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def per_example(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def labels_shape(self) -> tuple[int, ...]: ...
    @property
    def labels_dtype(self) -> np.dtype: ...
    @property
    def classes(self) -> int: ...
    @property
    def note(self) -> str: ...
    @property
    def fingerprint(self) -> dict[str, Any] | None: ...

    @property
    def train_inputs(self) -> Sized:
        """The inputs of the N training examples."""
        ...

    @property
    def test_inputs(self) -> Sized:
        """The inputs of the M test examples."""
        ...

    def first(self, n: int | None) -> Any:
        """This data set with the first n training examples only; None for all."""
        ...

    def held_out(self, n: int) -> Any:
        """This data set with its last n training examples as its test examples, and trained on the others."""
        ...

    def without_inputs(self) -> Any:
        """This data set for a process that needs labels only: inputs of zeros, which take no memory."""
        ...

    def train_transform(self, seed: int) -> Callable[[Any, Any], Any]:
        """f(inputs [B, ...], number of the batch) -> what the network takes, traced on a device. Its randomness
        (augmentation) is a function of the seed and the batch. Raises BadInput for a seed out of range."""
        ...

    def test_transform(self) -> Callable[[Any], Any]:
        """f(inputs [B, ...]) -> what the network takes, traced on a device."""
        ...

    def described(self) -> str:
        """How many examples of what, in words."""
        ...

    def measures(self, test_loss: float | None) -> dict[str, float | None]:
        """Further numbers that a test loss (in nats) is reported as, by their names in the files of a run."""
        ...


def images_described(train: int, test: int, shape: tuple[int, int, int], classes: int) -> str:
    """1,438 training and 359 test images 32x32x3, 10 classes."""
    height, width, channels = shape
    return f"{train:,} training and {test:,} test images {height}x{width}x{channels}, {classes} classes"
