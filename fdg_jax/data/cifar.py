"""What CIFAR-10 and CIFAR-100 have in common: where they are looked for, and how they get into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from fdg_jax.data import Dataset, cache, prepared
from fdg_jax.errors import BadInput


class Cifar(NamedTuple):
    """One of the two data sets. Mean and deviation are those of its training images."""

    expected: prepared.Expected
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def load(cifar: Cifar, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """Returns the data set from the TFDS directory `data_dir`, or from TFDS's own if that is None."""
    name = cifar.expected.name
    directory = find(name, data_dir)
    if directory is None:
        raise BadInput(f"{prepared.default_data_dir()} doesn't hold {name}.")
    arrays = cache.cached(directory, lambda: prepared.read(directory, cifar.expected))
    return Dataset(
        name, *arrays, classes=cifar.expected.classes, mean=cifar.mean, std=cifar.std, pad=4, flip=True
    )


def find(name: str, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The prepared directory, or None if it has to be downloaded; BadInput if `data_dir` lacks it."""
    if data_dir is None:
        return prepared.find(name, prepared.default_data_dir())
    data_dir = Path(data_dir).expanduser()
    found = prepared.list_directory(data_dir)
    directory = prepared.find(name, data_dir)
    if directory is not None:
        return directory
    if data_dir.name == name or data_dir.parent.name == name:
        hint = f"Give the directory that holds the folder {name}, not one inside it."
    else:
        holds = f"It holds {', '.join(path.name for path in found[:5])}." if found else "It is empty."
        default = prepared.default_data_dir()
        hint = f"{holds} Without --data-dir, {name} is downloaded to {default} (TFDS_DATA_DIR)."
    raise BadInput(f"the data directory {data_dir} has no prepared {name} ({name}/<version>/). {hint}")
