"""The shared code of CIFAR-10 and CIFAR-100: finding, downloading and reading their files.

A data directory holds each data set either as TFDS prepares it (`cifar10/<version>/`), or as a plain file of arrays
(`cifar10.npz`). Downloading makes the file of arrays from the official archive. Images keep their order.
"""

import errno
import io
import os
import tarfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fdg_jax.data import arrays, tfds
from fdg_jax.data.arrays import Arrays, Expected
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.download import Download, Unavailable, differs, fetch
from fdg_jax.errors import BadInput
from fdg_jax.machine.output import say
from fdg_jax.machine.signals import long_wait


class Cifar(NamedTuple):
    """One of the two data sets.

    mean, std: mean and standard deviation of each channel of the training images, scaled to 0..1.
    train, test: names of the archive's files, in order. A record in these files has one byte for each label, then an
        image of 3 x 32 x 32 bytes.
    label_bytes: how many labels a record has; the last one is used.
    """

    expected: Expected
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    download: Download
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int = 1


def load(cifar: Cifar, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """Loads one of the two data sets.

    Arguments:
        cifar: which one.
        data_dir: a data directory. None: TFDS's own directory; if the data set is not there, it is downloaded into this
            directory.

    Raises:
        Unavailable: the data set cannot be downloaded.
        BadInput: the directory lacks the data set, or files are damaged.
    """
    name = cifar.expected.name
    place = find(name, data_dir)
    if place is None:
        with long_wait():
            place = obtain(cifar, arrays.default_data_dir())
    if place.is_dir():
        found = arrays.cached(place, cifar.expected, lambda: tfds.read(place, cifar.expected))
    else:
        found = read_file(place, cifar.expected)
    return Dataset(name, *found, classes=cifar.expected.classes, mean=cifar.mean, std=cifar.std, pad=4, flip=True)


def find(name: str, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The prepared directory or the file of arrays; None if it must be downloaded.

    Raises: BadInput if a given `data_dir` lacks the data set.
    """
    default = arrays.default_data_dir()
    base = default if data_dir is None else Path(data_dir).expanduser()
    held = arrays.list_directory(base, missing_ok=data_dir is None)
    file = base / f"{name}.npz"
    found = arrays.prepared(name, base) or (file if file in held else None)
    if found is not None or data_dir is None:
        return found
    if base.name == name or base.parent.name == name:
        hint = f"Give the directory that holds the folder {name}, not a folder inside {name}."
    else:
        holds = f"It holds {', '.join(path.name for path in held[:5])}." if held else "It is empty."
        hint = f"{holds} Without --data-dir, {name} is downloaded to {default} (TFDS_DATA_DIR)."
    raise BadInput(f"the data directory {base} has neither {name}/<version>/ nor {name}.npz. {hint}")


def read_file(path: Path, expected: Expected) -> Arrays:
    """The arrays of a file that holds a complete data set. Raises BadInput."""
    try:
        found = arrays.read(path)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} can't be used: {error}. Remove or replace it.") from None
    if found is None or (len(found.train_labels), len(found.test_labels)) != (expected.train, expected.test):
        raise BadInput(f"{path} does not hold {expected.described()}. Remove or replace it.")
    return found


def obtain(cifar: Cifar, data_dir: Path) -> Path:
    """Downloads the archive into memory, makes `<data_dir>/<name>.npz` from it and returns the path of this file.

    On machines without a network, an archive in `<data_dir>/downloads/` is used.
    """
    name = cifar.expected.name
    archive, file = data_dir / "downloads" / cifar.download.url.rpartition("/")[2], data_dir / f"{name}.npz"
    try:
        if archive.exists():
            content, place = archive.read_bytes(), str(archive)
            if difference := differs(content, cifar.download):
                raise BadInput(f"{archive} has {difference}. Remove or replace it.")
        else:
            data_dir.mkdir(parents=True, exist_ok=True)
            if not os.access(data_dir, os.W_OK):  # better found out before the download
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            content, place = fetch(cifar.download), cifar.download.url
        arrays.write(file, unpacked(content, place, cifar))
    except Unavailable as error:
        raise Unavailable(
            f"{name} isn't in {data_dir}, and {error} Give a directory with {name} as --data-dir, or put the archive "
            f"there as {archive}, or use --dataset digits."
        ) from error
    except OSError as error:
        raise Unavailable(
            f"{name} can't be kept in {data_dir} ({error.strerror or error}). Set TFDS_DATA_DIR to a "
            f"directory with room for 200 MB, or use --dataset digits."
        ) from error
    return file


def unpacked(content: bytes, archive: str, cifar: Cifar) -> Arrays:
    """The arrays in an official archive. archive: where it is from, for errors. Raises BadInput."""
    say(f"unpacking {cifar.expected.name} (once)")
    wanted, files = {*cifar.train, *cifar.test}, dict[str, bytes]()
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if name in wanted and (file := tar.extractfile(member)) is not None:
                    files[name] = file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BadInput(f"{archive} can't be unpacked: {error}. Remove or replace it.") from error
    if missing := sorted(wanted - files.keys()):
        raise BadInput(f"{archive} lacks {', '.join(missing)}. Remove or replace it.")
    expected, found = cifar.expected, []
    height, width, channels = expected.shape
    size = cifar.label_bytes + height * width * channels
    for names, count in ((cifar.train, expected.train), (cifar.test, expected.test)):
        raw = b"".join(files[name] for name in names)
        if len(raw) != count * size:
            fact = f"{', '.join(names)} have {len(raw):,} bytes, but {count:,} records of {size:,} bytes need"
            raise BadInput(f"{archive}: {fact} {count * size:,}. Remove or replace it.")
        table = np.frombuffer(raw, np.uint8).reshape(count, size)
        images = table[:, cifar.label_bytes :].reshape(count, channels, height, width).transpose(0, 2, 3, 1)
        found += [np.ascontiguousarray(images), table[:, cifar.label_bytes - 1].astype(np.int32)]
    return Arrays(*found)
