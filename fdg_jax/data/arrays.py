"""The arrays of a decoded data set, in a file: `.npz` with a checksum, written whole or not at all.

Such a file is either a complete data set (`<data directory>/cifar10.npz`), or in the cache. A file in the cache keeps
arrays that were decoded from other files, and is used only while those files are unchanged.

Prepared data sets are found in TFDS's layout, `<data directory>/<name>/<version>/`. Errors distinguish a missing
directory, a file in its place, and an unreadable directory.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fdg_jax.durable import make_private, replacing
from fdg_jax.errors import BadInput
from fdg_jax.machine.facts import cache_dir
from fdg_jax.machine.output import say


def default_data_dir() -> Path:
    """The directory in which TFDS itself keeps data sets."""
    return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def prepared(name: str, data_dir: Path) -> Path | None:
    """The directory of the newest prepared version of `name` in `data_dir`; None if there is none. Raises BadInput."""
    versions = [path for path in list_directory(data_dir / name, missing_ok=True)
                if re.fullmatch(r"\d+\.\d+\.\d+", path.name) and list_directory(path)]  # fmt: skip
    return max(versions, key=lambda path: [int(part) for part in path.name.split(".")], default=None)


def list_directory(path: Path, missing_ok: bool = False) -> list[Path]:
    """The sorted entries of a directory; [] if it is missing and `missing_ok`. Raises BadInput."""
    try:
        return sorted(path.iterdir())
    except FileNotFoundError:
        if missing_ok:
            return []
        raise BadInput(f"the directory {path} doesn't exist. Give an existing one: --data-dir FOLDER.") from None
    except NotADirectoryError:
        raise BadInput(f"{path} is a file where a directory is needed.") from None
    except OSError as error:
        raise BadInput(f"the directory {path} can't be read: {error.strerror}.") from None


FORMAT = 1  # increase it if the stored arrays, or the decoding of images, change


class Expected(NamedTuple):
    """The expected form of a data set: two splits, train and test, of images [H, W, C] with one label."""

    name: str
    train: int  # number of training images
    test: int  # number of test images
    classes: int
    shape: tuple[int, int, int] = (32, 32, 3)

    def described(self) -> str:
        """A text such as: 30 training and 12 test images (32, 32, 3) of 10 classes."""
        return f"{self.train} training and {self.test} test images {self.shape} of {self.classes} classes"


class Arrays(NamedTuple):
    """The arrays of a decoded data set."""

    train_images: np.ndarray  # [N, H, W, C] uint8
    train_labels: np.ndarray  # [N] int32
    test_images: np.ndarray  # [M, H, W, C] uint8
    test_labels: np.ndarray  # [M] int32


def digest(arrays: Iterable[np.ndarray]) -> str:
    """The sha256 over dtype, shape and bytes of arrays."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def write(path: Path, arrays: Arrays, source: str = "") -> None:
    """Writes a file completely or not at all. source: what the arrays were made from. Raises OSError."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, source=np.array(source), checksum=np.array(digest(arrays)), **arrays._asdict())


def read(path: Path, source: str = "") -> Arrays | None:
    """The arrays of a file; None if they were made from another source.

    Raises: FileNotFoundError. ValueError if the file is damaged or cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if str(file["source"]) != source:
                return None
            arrays = Arrays(*(file[name] for name in Arrays._fields))
            if str(file["checksum"]) == digest(arrays):
                return arrays
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds
        raise ValueError(f"{type(error).__name__}: {error}") from None
    raise ValueError("its checksum is wrong")


def cached(
    directory: Path, expected: Expected, make: Callable[[], Arrays], files: Iterable[Path] | None = None
) -> Arrays:
    """The arrays of a data set, from the user's cache directory or decoded anew.

    An error with the cache never ends a run: a sentence is printed, and the images are decoded again.

    Arguments:
        directory: where the data set's files are.
        expected: the expected form of the data set.
        make: decodes the files; called if the cache does not have the arrays.
        files: the files that the arrays depend on, by default those in `directory`.
    """
    directory = directory.resolve()
    source = fingerprint(directory, expected, files)
    place = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    path = cache_dir() / f"{directory.parent.name}-{directory.name}-{place}.npz"
    with contextlib.suppress(FileNotFoundError):
        try:
            if (arrays := read(path, source)) is not None:
                return arrays
        except ValueError as error:
            say(f"the cache file {path} can't be used ({error}); decoding again")
    arrays = make()
    try:
        make_private(path.parent)
        write(path, arrays, source)
    except OSError as error:
        say(
            f"the decoded images can't be kept in {path.parent} ({error.strerror or error}): the next start "
            f"will decode them again. XDG_CACHE_HOME chooses another place."
        )
    return arrays


def fingerprint(directory: Path, expected: Expected, paths: Iterable[Path] | None = None) -> str:
    """A hash that changes if a file of the directory (or of `paths`) is added, removed, renamed or written."""
    files = []
    for path in list_directory(directory) if paths is None else paths:
        with contextlib.suppress(OSError):  # a dangling link, which `make` will report
            stat = path.stat()
            files.append((path.parent.name, path.name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr((FORMAT, os.fspath(directory), expected, files)).encode()).hexdigest()


def training_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, standard deviation) of each channel of [N, H, W, C], scaled to 0..1, to four places."""
    # Computed from the counts of the 256 values, which are exact, so the result is the same on every machine.
    counts = np.zeros((images.shape[3], 256), np.int64)
    for start in range(0, len(images), 1000):
        for c, count in enumerate(counts):
            count += np.bincount(images[start : start + 1000, ..., c].ravel(), minlength=256)
    values, shares = np.arange(256) / 255, counts / counts[0].sum()
    means = [float(values @ share) for share in shares]
    variances = [float((values - mean) ** 2 @ share) for mean, share in zip(means, shares, strict=True)]
    return tuple(round(mean, 4) for mean in means), tuple(round(each**0.5, 4) for each in variances)
