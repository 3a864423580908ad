"""What CIFAR-10 and CIFAR-100 have in common: finding, downloading and loading them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from fdg_jax import durable
from fdg_jax.data import cache, directories, prepared
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.download import Download, Unavailable, check, fetch
from fdg_jax.data.interruptible import long_wait
from fdg_jax.data.prepare import Layout, prepare
from fdg_jax.errors import BadInput


class Cifar(NamedTuple):
    """One of the two data sets. mean and std: of its training images' channels, scaled to 0..1."""

    expected: prepared.Expected
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    download: Download
    layout: Layout


def load(cifar: Cifar, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """Loads one of the two data sets.

    Arguments:
        cifar: which one.
        data_dir: a TFDS data directory. None: TFDS's own, where the data set is downloaded and prepared if necessary.

    Returns: the data set.

    Raises:
        Unavailable: it cannot be downloaded or prepared.
        BadInput: the directory lacks it, or files are damaged.
    """
    name = cifar.expected.name
    directory = find(name, data_dir)
    if directory is None:
        with long_wait():
            directory = obtain(cifar, directories.default_data_dir())
    arrays = cache.cached(directory, cifar.expected, lambda: prepared.read(directory, cifar.expected))
    return Dataset(name, *arrays, classes=cifar.expected.classes, mean=cifar.mean, std=cifar.std, pad=4, flip=True)


def find(name: str, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The prepared directory; None if it must be downloaded. Raises BadInput if a given `data_dir` lacks it."""
    default = directories.default_data_dir()
    if data_dir is None:
        return directories.find(name, default)
    data_dir = Path(data_dir).expanduser()
    found = directories.list_directory(data_dir)
    directory = directories.find(name, data_dir)
    if directory is not None:
        return directory
    if data_dir.name == name or data_dir.parent.name == name:
        hint = f"Give the directory that holds the folder {name}, not one inside it."
    else:
        holds = f"It holds {', '.join(path.name for path in found[:5])}." if found else "It is empty."
        hint = f"{holds} Without --data-dir, {name} is downloaded to {default} (TFDS_DATA_DIR)."
    raise BadInput(f"the data directory {data_dir} has no prepared {name} ({name}/<version>/). {hint}")


def obtain(cifar: Cifar, data_dir: Path) -> Path:
    """Downloads the archive, prepares it in `data_dir` and returns the prepared directory.

    An archive in `<data_dir>/downloads/` is used if there is one, for machines without a network.
    """
    name = cifar.expected.name
    archive = data_dir / "downloads" / cifar.download.url.rpartition("/")[2]
    try:
        if archive.exists():
            check(archive, cifar.download)
            return prepare(archive, cifar.layout, cifar.expected, data_dir)
        # Under a temporary name, so that another process does not take it for a user's archive.
        fetched = durable.temporary_beside(archive)
        fetch(cifar.download, fetched)
        try:
            return prepare(fetched, cifar.layout, cifar.expected, data_dir)
        finally:
            fetched.unlink()
    except Unavailable as error:
        raise Unavailable(
            f"{name} isn't prepared in {data_dir}, and {error} Give a directory with a prepared {name} as "
            f"--data-dir, or put the archive there as {archive}, or use --dataset digits."
        ) from error
    except OSError as error:
        raise Unavailable(
            f"{name} can't be prepared in {data_dir} ({error.strerror or error}). Set TFDS_DATA_DIR to a "
            f"directory with room for 400 MB, or use --dataset digits."
        ) from error
