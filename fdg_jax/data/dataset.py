"""The interface of a data set: its examples, their unit, and the transforms to a network's input.

A `Dataset` (images) and a `Text` (tokens) hold their examples as arrays; a `Stream` decodes images while the training
runs. All are a `Source`, so that other code works with images and tokens alike.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from fdg_jax.errors import BadInput


class Source:
    """A data set of N training and M test examples, which are images unless a subclass says otherwise.

    name: its name for `--dataset`.
    classes: labels are 0 .. classes-1.
    note: what the user must know about this run's data; "" for nothing.
    fingerprint: the fingerprint of the whole data set (fdg_jax.data.fingerprint); None until it is computed.
    mean, std: [C] of the training images scaled to 0..1. pad: black pixels added on each side before the random crop.
    flip: whether a mirrored image still shows the same class.
    unit: the unit of speed: "images" or "tokens". per_example: how many units an example has.
    shape, dtype: those of an example's stored input. labels_shape, labels_dtype: those of its labels.
    train_inputs, test_inputs: the inputs of the examples; they have a length.
    parts: the parts of an example, the input first. For each part there are two fields: for "images", train_images and
        test_images.
    """

    name: str
    classes: int
    note: str
    fingerprint: dict[str, Any] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flip: bool
    parts: ClassVar[tuple[str, ...]] = ("images", "labels")
    unit: ClassVar[str] = "images"
    dtype: ClassVar[np.dtype] = np.dtype(np.uint8)
    labels_dtype: ClassVar[np.dtype] = np.dtype(np.int32)

    @property
    def per_example(self) -> int:
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train_inputs.shape[1:]

    @property
    def labels_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def train_inputs(self) -> Any:
        return getattr(self, f"train_{self.parts[0]}")

    @property
    def test_inputs(self) -> Any:
        return getattr(self, f"test_{self.parts[0]}")

    def _replace(self, **changes: Any) -> Self:
        """This data set with other fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def first(self, n: int | None) -> Self:
        """This data set with the first n training examples only; None for all."""
        return self._replace(**{f"train_{part}": getattr(self, f"train_{part}")[:n] for part in self.parts})

    def held_out(self, n: int) -> Self:
        """This data set with its last n training examples as the test examples, and the others for training."""
        left = len(self.train_inputs) - n
        tests = {f"test_{part}": getattr(self, f"train_{part}")[left:] for part in self.parts}
        return self.first(left)._replace(**tests)

    def without_inputs(self) -> Self:
        """This data set for a process that needs labels only: inputs of zeros, which take no memory."""
        inputs = {f"{split}_{self.parts[0]}": getattr(self, f"{split}_inputs").shape for split in ("train", "test")}
        return self._replace(**{name: np.broadcast_to(np.uint8(0), shape) for name, shape in inputs.items()})

    def train_transform(self, seed: Any) -> Callable[[Any, Any], Any]:
        """The traceable function f(inputs [B, ...], number of the batch) -> the network's input. Its randomness
        (augmentation) depends only on the seed and the batch. Raises BadInput for a seed out of range."""
        from fdg_jax.data import augment

        return augment.train_transform(self, seed)

    def test_transform(self) -> Callable[[Any], Any]:
        """The traceable function f(inputs [B, ...]) -> the network's input."""
        from fdg_jax.data import augment

        return augment.test_transform(self)

    def described(self) -> str:
        """A description, such as: 1,438 training and 359 test images 32x32x3, 10 classes."""
        train, test = len(self.train_inputs), len(self.test_inputs)
        return f"{train:,} training and {test:,} test images {'x'.join(map(str, self.shape))}, {self.classes} classes"

    def measures(self, test_loss: float | None) -> dict[str, float | None]:
        """Further measures computed from a test loss (in nats): name in the files of a run -> value."""
        return {}


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
