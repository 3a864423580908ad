"""Data sets: images in memory as uint8 arrays, images that are decoded while training, and text.

A data set in memory is one file in `sets/` with a function `load(data_dir) -> Dataset`. Its name is the value of
`--dataset` on the command line. A data set that does not fit into memory is one file in `streams/` with
`load(data_dir) -> Stream`. A data set of text or tokens is one file in `texts/` with `load(files, block_size) -> Text`.
`dataset` has the interface that all three share. The other files are helpers (`tfds` reads prepared directories,
`arrays` reads files of decoded arrays) or transform examples (`augment`). A slow import happens only when a data set
needs it.
"""

import os
from collections.abc import Sequence
from typing import Any

from fdg_jax.data import pictures, sets, streams, texts
from fdg_jax.data.dataset import Dataset, Source, checked
from fdg_jax.data.stream import Stream
from fdg_jax.data.text import BLOCK_SIZE, Text
from fdg_jax.errors import BadInput
from fdg_jax.options.folder import Folder

__all__ = [
    "BLOCK_SIZE", "Dataset", "Source", "Stream", "Text",
    "is_path", "load", "load_text", "names", "stream_names", "text_names", "unit",
]  # fmt: skip


SETS, STREAMS, TEXTS = (Folder(each.__name__, "data set") for each in (sets, streams, texts))
is_path = pictures.is_path
names, stream_names, text_names = SETS.names, STREAMS.names, TEXTS.names


def unit(name: str) -> str:
    """The unit of a data set, by its name: "images" or "tokens"."""
    return "tokens" if name in text_names() else "images"


def load_text(name: str, files: Sequence[str] = (), block_size: int = BLOCK_SIZE, **more: Any) -> Text:
    """Loads a data set of text.

    Arguments:
        name: the data set.
        files: the files to read; none: the data set's default text.
        block_size: tokens of an example.
        more: for "tokens": validation, vocabulary and token_dtype (fdg_jax.data.texts.tokens).

    Raises:
        BadInput: the name is not known, a file cannot be read, or there is too little text.

    Example:
        >>> load_text("text", block_size=64).shape
        (64,)
    """
    if name in text_names():
        return TEXTS.module(name).load(files, block_size, **more)
    raise BadInput(f"there is no text {name!r}. Choose one of: {', '.join(text_names())}.")


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset | Stream:
    """Loads a data set of images, of either kind.

    Arguments:
        name: the data set; or a path, of a folder of images or a file of arrays (fdg_jax.data.pictures).
        data_dir: a TFDS data directory (the one that holds `cifar10/3.0.2`). Nothing is downloaded into a given
            directory, since a mistyped path should be an error. None: TFDS's own directory (`TFDS_DATA_DIR`, else
            `~/tensorflow_datasets`); a data set that is missing there is downloaded.

    Returns: the data set.

    Raises:
        BadInput: the name is not known, the directory cannot be read or lacks the data set, files are damaged or
            incomplete, or the loaded arrays are invalid (`checked`). BadInput is raised before any slow work.

    Example:
        >>> load("digits").shape
        (32, 32, 3)
    """
    if pictures.is_path(name):
        found = pictures.load(name, data_dir)
    elif name in names():
        found = SETS.module(name).load(data_dir)
    elif name in stream_names():
        found = STREAMS.module(name).load(data_dir)
    else:
        raise BadInput(f"there is no data set {name!r}. Choose one of: {', '.join([*names(), *stream_names()])}.")
    if name in SETS.own():
        if not isinstance(found, Dataset | Stream):
            fact = f"{SETS.shown(name)}: load() returns a {type(found).__name__}"
            raise BadInput(f"{fact}. Return a fdg_jax.data.Dataset or fdg_jax.data.Stream.")
        found = found._replace(name=name)  # --resume finds the data by this name
    return checked(found) if isinstance(found, Dataset) else found
