"""Reads data sets that TFDS has prepared, without TensorFlow and without a network.

`tfds.data_source(name)` would first ask a server about the data set and, offline, retry for minutes. A builder made
from the directory reads its two JSON files only. The images are then read one at a time, in any order and in any
process. `array_record` verifies the checksum of each record. Every fault is a BadInput that names the directory, the
file or the image.
"""

from __future__ import annotations

import dataclasses
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from fdg_jax import strict_json
from fdg_jax.data import files
from fdg_jax.data.arrays import Arrays, Expected
from fdg_jax.data.download import Unavailable
from fdg_jax.errors import BadInput, Damaged

OPEN = 256  # files that a process keeps open; ImageNet has 1024 files, often the limit for a process
WAY_OUT = "Prepare it again, or use another --data-dir or --dataset."


@dataclasses.dataclass(frozen=True)
class Shards:
    """Labelled images in `array_record` files."""

    paths: tuple[str, ...]
    ends: np.ndarray  # [files] number of records up to the end of each file
    rows: np.ndarray  # [N] the number of each image, counted over all files
    classes: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> Shards:
        return dataclasses.replace(self, rows=self.rows[rows])

    def shuffled(self) -> Shards:
        """The same images in a fixed random order, as TFDS may not have shuffled them."""
        return dataclasses.replace(self, rows=np.random.RandomState(0).permutation(len(self.rows)))

    def read(self, i: int) -> tuple[bytes, int, str]:
        """(content, label, file and number of the record) of image i. Raises Damaged if it cannot be read."""
        row = int(self.rows[i])
        shard = int(np.searchsorted(self.ends, row, side="right"))
        number = row - (int(self.ends[shard - 1]) if shard else 0)
        where = f"image {number} in {self.paths[shard]}"
        try:
            content, label = example(reader(self.paths[shard]).read([number])[0])
        except Exception as error:  # array_record and protobuf have exceptions of their own
            raise Damaged(f"{where} can't be read ({error}). Prepare it again.") from None
        if not 0 <= label < self.classes:
            raise Damaged(f"{where} has the label {label} instead of one of 0..{self.classes - 1}. Prepare it again.")
        return content, label, where

    def listing(self) -> tuple[list[np.ndarray], np.ndarray]:
        """([number of records up to the end of each file, order of all], sizes of the files in bytes)."""
        return [np.asarray(self.ends, np.int64), np.asarray(self.rows, np.int64)], files.sizes(self.paths)


@lru_cache(maxsize=OPEN)
def reader(path: str):
    """An open reader of a shard."""
    from array_record.python.array_record_module import ArrayRecordReader

    return ArrayRecordReader(path, options="readahead_buffer_size:0", file_reader_buffer_size=32768)


def example(record: bytes) -> tuple[bytes, int]:
    """(image, label) of a serialised `tf.train.Example`."""
    from tensorflow_datasets.proto import tf_example_pb2

    feature = cast(Any, tf_example_pb2).Example.FromString(record).features.feature
    return feature["image"].bytes_list.value[0], int(feature["label"].int64_list.value[0])


def opened(directory: Path, names: tuple[str, str]) -> tuple[list[Shards], tuple[int, ...]]:
    """The splits of a prepared directory, each in the order of its files, and the shape of an image.

    Arguments:
        directory: such as `.../cifar10/3.0.2`.
        names: the names of the splits.

    Raises:
        Unavailable: the files are for TensorFlow.
        BadInput: TFDS cannot read the directory, or a split is missing or incomplete.
    """
    check_format(directory / "dataset_info.json")
    try:
        import tensorflow_datasets as tfds

        builder: Any = tfds.builder_from_directory(directory)  # its decorated methods confuse type checkers
        splits, features = builder.info.splits, builder.info.features
        classes, shape = int(features["label"].num_classes), features["image"].shape
        found = [splits[name] for name in names]
    except ImportError as error:
        way_out = "pip install tensorflow-datasets importlib_resources array_record"
        raise BadInput(f"{directory} can't be read, because a package is missing ({error}). {way_out}") from error
    except Exception as error:  # TFDS raises many kinds for JSON that is not its own
        fact = f"TFDS can't read {directory} ({type(error).__name__}: {error})"
        raise BadInput(f"{fact}: the splits {', '.join(names)} need an image and a label. {WAY_OUT}") from error
    reader.cache_clear()  # files of an earlier call may have been replaced
    for split in found:
        check_shards(split)
    paths = [tuple(map(os.fspath, split.filepaths)) for split in found]
    lengths = [list(map(int, split.shard_lengths)) for split in found]
    each = zip(paths, lengths, strict=True)
    return [Shards(path, np.cumsum(n), np.arange(sum(n)), classes) for path, n in each], shape


def check_format(path: Path) -> None:
    """Raises Unavailable if the files of a data set need TensorFlow, and BadInput if their format is unknown.

    Unavailable does not mean damage, so `--dataset auto` may go on without this data set.
    """
    try:
        kind = strict_json.read(path).get("fileFormat", "tfrecord")
    except (OSError, ValueError, AttributeError) as error:
        raise BadInput(f"{path} can't be used: {error}. {WAY_OUT}") from None
    if kind != "array_record":
        raise Unavailable(
            f"{path}: the files are {kind}, which can't be read without TensorFlow. Give a data directory with "
            f"array_record files. To have the data set downloaded, set TFDS_DATA_DIR to a new directory."
        )


def check_shards(split: Any) -> None:
    """Checks each shard's number of records. The index is at a shard's end, so a truncated shard has no index. Raises
    BadInput."""
    for path, images in zip(map(os.fspath, split.filepaths), split.shard_lengths, strict=True):
        try:
            size = os.stat(path).st_size
            with open(path, "rb"):
                pass
        except OSError as error:
            fact = f"{path}, which should hold {images} images, can't be read: {error.strerror}"
            raise BadInput(f"{fact}. {WAY_OUT}") from None
        try:
            found = reader(path).num_records()
        except (RuntimeError, ValueError):  # array_record raises these for a damaged index
            found = 0
        if found != images:
            fact = f"{path} is truncated or damaged: {found} of {images} images can be found in its {size:,} bytes"
            raise BadInput(f"{fact}. {WAY_OUT}")


def read(directory: Path, expected: Expected) -> Arrays:
    """Decodes a prepared directory with the splits train and test. This takes seconds for CIFAR, so `cached` keeps the
    result.

    Raises:
        BadInput: the directory is not as expected, or a record is damaged; the message names the file.
    """
    splits, shape = opened(directory, ("train", "test"))
    found = expected._replace(
        train=len(splits[0]), test=len(splits[1]), classes=splits[0].classes, shape=cast(Any, shape)
    )
    if found != expected:
        raise BadInput(f"{directory} holds {found.described()}, but {expected.described()} are expected. {WAY_OUT}")
    # One thread: for such small images, passing on the interpreter lock costs more than a second thread gains.
    return files.decoded(expected, *splits, threads=1)
