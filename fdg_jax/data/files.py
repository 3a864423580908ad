"""Finds image files, usually in a folder for each class, their classes, and missing files.

The order is a fixed shuffle of the sorted names, so that the first N images (`--train-size`) are of all classes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from fdg_jax.data import jpeg
from fdg_jax.data.arrays import Arrays, Expected
from fdg_jax.errors import BadInput, Damaged
from fdg_jax.machine.output import Progress, say

SUFFIXES = (".jpeg", ".jpg", ".png")
KINDS = "*.JPEG, *.jpg or *.png"
THREADS, CHUNK = 16, 500  # threads that read file sizes; files that a thread takes at a time


class Encoded(Protocol):
    """Labelled images in encoded form on a disk. The object can be pickled, as every worker gets a copy."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Encoded: ...

    def read(self, i: int, /) -> tuple[bytes, int, str]:
        """Returns the encoded image i, its label, and its place as errors name it. Raises Damaged if the image cannot
        be read."""
        ...

    def listing(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Returns arrays of names, labels or order (only those known without reading images), and the file sizes in
        bytes.

        A copy of the data elsewhere has the same listing. Raises Damaged if a file is gone.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Files:
    """Labelled image files below a folder."""

    folder: str
    names: np.ndarray  # [N] bytes: paths below the folder; a list of a million strings would be slow to copy
    labels: np.ndarray  # [N] int32

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: slice) -> Files:
        return Files(self.folder, self.names[rows], self.labels[rows])

    def path(self, i: int) -> str:
        """The path of image i."""
        return os.path.join(self.folder, os.fsdecode(bytes(self.names[i])))

    def read(self, i: int) -> tuple[bytes, int, str]:
        """(content, label, path) of image i. Raises Damaged if the file cannot be read."""
        path = self.path(i)
        try:
            with open(path, "rb") as file:
                return file.read(), int(self.labels[i]), path
        except OSError as error:
            raise Damaged(f"{path} can't be read: {error.strerror or error}.") from None

    def listing(self) -> tuple[list[np.ndarray], np.ndarray]:
        """([names below the folder, labels], sizes in bytes). Raises Damaged if a file is gone."""
        return [self.names, self.labels], sizes(map(self.path, range(len(self))))


def sizes(paths: Iterable[str]) -> np.ndarray:
    """The sizes of files in bytes, [N] int64. It uses threads, since network file systems answer slowly. Raises
    Damaged."""
    every = list(paths)
    chunks = [every[start : start + CHUNK] for start in range(0, len(every), CHUNK)]
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda chunk: [size(path) for path in chunk], chunks))
    return np.array([each for chunk in found for each in chunk], np.int64)


def size(path: str) -> int:
    """The size of a file in bytes. Raises Damaged if the file is gone."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise Damaged(f"{path} can't be read: {error.strerror or error}.") from None


def shuffled(folder: Path, names: Sequence[str], labels: Sequence[int]) -> Files:
    """Images in a fixed random order, the same on every machine and with every NumPy.

    Arguments:
        folder: where they are.
        names: their paths below the folder.
        labels: their classes, 0, 1, ...
    """
    order = np.random.RandomState(0).permutation(len(names))
    encoded = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)
    return Files(os.fspath(folder), encoded[order], np.asarray(labels, np.int32)[order])


def entries(folder: Path, what: str) -> list[os.DirEntry]:
    """The sorted entries of a folder. what: what it should hold, for the error. Raises BadInput."""
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise BadInput(f"{folder}, which should hold {what}, can't be read: {error.strerror}.") from None


def classes(folder: Path) -> list[str]:
    """The names of the classes 0, 1, ...: the sorted folders in a split's folder. Raises BadInput."""
    found = entries(folder, "a folder of images for each class")
    return [entry.name for entry in found if entry.is_dir() and not entry.name.startswith(".")]


def images(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the sorted names of the image files in a folder, and the names of all other entries. Raises BadInput."""
    names = [entry.name for entry in entries(folder, f"images ({KINDS})") if not entry.name.startswith(".")]
    found = [name for name in names if name.lower().endswith(SUFFIXES)]
    return found, sorted(set(names) - set(found))


def say_left_out(folder: Path, others: Sequence[str], where: str) -> None:
    """Prints which entries below a folder are not read, if there are any. where: the place from which images are
    read."""
    if others:
        fact = f"NOT read: {folder / others[0]} ({len(others):,} files or folders of other kinds below {folder})"
        say(f"{fact}. Images must be {KINDS}, directly in {where}.")


def by_folder(split: Path, wanted: Sequence[str]) -> Files:
    """Finds the images `<split>/<class>/*.JPEG`, and prints which other entries there are.

    Arguments:
        split: the folder.
        wanted: the names of class 0, 1, ...

    Raises:
        BadInput: a class has no folder or no image; the message names it.
    """
    names, labels = [], []
    beside = (entry.name for entry in entries(split, "a folder of images for each class") if not entry.is_dir())
    others = [name for name in beside if not name.startswith(".")]
    for label, name in enumerate(wanted):
        found, left_out = images(split / name)
        if not found:
            holds = f"; it holds {left_out[0]}" if left_out else ""
            fact = f"{split / name} holds no images ({KINDS}){holds}, so class {name} is missing"
            raise BadInput(f"{fact}. Put its images directly into that folder.")
        names += [f"{name}/{image}" for image in found]
        others += [f"{name}/{other}" for other in left_out]
        labels += [label] * len(found)
    say_left_out(split, others, "the folder of their class")
    return shuffled(split, names, labels)


def by_class(train: Path, test: Path) -> tuple[Files, Files, int]:
    """(training images, test images, number of classes) of two folders. Both must have a folder of images for each
    class. Raises BadInput."""
    wanted, others = classes(train), classes(test)
    for here, there, names in ((train, test, {*others} - {*wanted}), (test, train, {*wanted} - {*others})):
        if names:
            name = min(names)
            raise BadInput(f"{here / name} is missing, but {there / name} exists. Both must have every class.")
    return by_folder(train, wanted), by_folder(test, wanted), len(wanted)


def by_list(folder: Path, source: Path, class_of: dict[str, str], wanted: Sequence[str]) -> Files:
    """Finds the images `<folder>/*.JPEG`, whose classes are listed in a file, and prints which other entries there are.

    Arguments:
        folder: where they are.
        source: the file with the list, for errors.
        class_of: {file name: name of its class}.
        wanted: the names of class 0, 1, ...

    Raises:
        BadInput: an image is not listed, a listed class is not known, or a listed image is missing.
    """
    number = {name: label for label, name in enumerate(wanted)}
    names, others = images(folder)
    say_left_out(folder, [name for name in others if folder / name != source], "that folder")
    for name in names:
        if name not in class_of:
            raise BadInput(f"{folder / name} is not listed in {source}, so its class is not known. Unpack them again.")
        if class_of[name] not in number:
            raise BadInput(f"{source} says that {name} is of class {class_of[name]}, which has no training images.")
    if missing := sorted(class_of.keys() - set(names)):
        listed = f"{len(missing)} of the {len(class_of)} images listed in {source}"
        raise BadInput(f"{folder / missing[0]} is missing ({listed} are). Unpack them again.")
    return shuffled(folder, names, [number[class_of[name]] for name in names])


def lines(path: Path, holds: str) -> list[str]:
    """The non-empty lines of a text file. holds: what the file contains, for the error. Raises BadInput."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise BadInput(f"{path} is missing: this file alone says {holds}. Unpack the archive again.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} can't be read: {error}.") from None


def decoded(expected: Expected, train: Encoded, test: Encoded, threads: int | None = None) -> Arrays:
    """Decodes images of one size in threads, as Pillow releases the interpreter lock. Raises Damaged."""
    progress = Progress(len(train) + len(test), "images", f"decoding {expected.name} (once)")
    made = []
    with ThreadPoolExecutor(threads) as pool:
        for split in (train, test):
            images, labels = np.empty((len(split), *expected.shape), np.uint8), np.empty(len(split), np.int32)

            def fill(rows: range, split=split, images=images, labels=labels) -> int:
                for i in rows:
                    content, labels[i], where = split.read(i)
                    images[i] = jpeg.decode_whole(content, where, expected.shape)
                return len(rows)

            for count in pool.map(fill, [range(len(split))[start:][:CHUNK] for start in range(0, len(split), CHUNK)]):
                progress.advance(count)
            made += [images, labels]
    return Arrays(*made)
