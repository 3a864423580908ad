"""Encoded images of a TFDS directory, read one at a time and in any order, without TensorFlow.

TFDS's own data source would do this, but every worker process would have to make a builder, and a damaged record could
not be named. `prepared` has checked the directory before.
"""

from __future__ import annotations

import dataclasses
import os
from functools import lru_cache
from typing import Any, cast

import numpy as np

from fdg_jax.data import files
from fdg_jax.data.damaged import Damaged

OPEN = 256  # files that a process keeps open; ImageNet has 1024, which is often the limit for a process


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

    def read(self, i: int) -> tuple[bytes, int, str]:
        """(content, label, file and number of the record) of image i. Raises Damaged if it cannot be read."""
        row = int(self.rows[i])
        shard = int(np.searchsorted(self.ends, row, side="right"))
        number = row - (int(self.ends[shard - 1]) if shard else 0)
        where = f"image {number} of {self.paths[shard]}"
        try:
            content, label = example(reader(self.paths[shard]).read([number])[0])
        except Exception as error:  # array_record and protobuf each have their own
            raise Damaged(f"{where} can't be read ({error}). Prepare it again.") from None
        if not 0 <= label < self.classes:
            raise Damaged(f"{where} has the label {label} and not one of 0..{self.classes - 1}. Prepare it again.")
        return content, label, where

    def listing(self) -> tuple[list[np.ndarray], np.ndarray]:
        """([number of records up to the end of each file, order of all], sizes of the files in bytes)."""
        return [np.asarray(self.ends, np.int64), np.asarray(self.rows, np.int64)], files.sizes(self.paths)


def of(split: Any, classes: int) -> Shards:
    """The images of a split in a fixed random order, as TFDS may not have shuffled them. split: TFDS's SplitInfo."""
    ends = np.cumsum(split.shard_lengths)
    rows = np.random.RandomState(0).permutation(int(ends[-1]))
    return Shards(tuple(map(os.fspath, split.filepaths)), ends, rows, classes)


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
