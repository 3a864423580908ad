"""Blocks of a file's tokens, like an array that is read from the file when it is indexed.

A memory map would need less code. But if a mapped file is cut short, the process is killed (SIGBUS) when it reads
there. Here a file that is cut short causes an ordinary error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fdg_jax.errors import Damaged, reason


class OpenFile:
    """A file that is kept open, so that a new file of the same name does not replace it. file: the open file, if it is
    open already."""

    def __init__(self, path: Path, file: Any = None):
        self.path = path
        self.file = file or path.open("rb", buffering=0)
        self.size = os.fstat(self.file.fileno()).st_size

    def check(self) -> None:
        """Raises Damaged if the file has been cut short since it was opened. The check takes a microsecond."""
        if (left := os.fstat(self.file.fileno()).st_size) < self.size:
            raise Damaged(f"{self.path} was cut short: {left:,} of {self.size:,} bytes are left.")

    def read(self, start: int, out: np.ndarray) -> None:
        """Fills `out`, a contiguous array, with the bytes from `start` on. Raises Damaged if the file has too few
        bytes."""
        rest = out.reshape(-1).view(np.uint8).data
        while len(rest):  # one call reads at most 2 GiB
            try:
                n = os.preadv(self.file.fileno(), [rest], start)
            except OSError as error:
                raise Damaged(f"{self.path} cannot be read: {reason(error)}.") from None
            if n == 0:
                self.check()
                raise Damaged(f"{self.path} ends before byte {start:,}.")
            start, rest = start + n, rest[n:]


class Blocks:
    """n blocks of T tokens of a file: [n, T] of `dtype`. Block i begins at token `start` + i `stride`.

    A slice returns `Blocks` again. An integer, an array of integers, and `np.array(blocks)` read from the file.

    Arguments:
        file: an `OpenFile`, or an object with the same methods (fdg_jax.data.texts.tokens).
        stride: in tokens; None for T, so that a block begins where the previous block ends.

    Raises:
        Damaged: while reading, if the file has been cut short.
    """

    def __init__(self, file: Any, start: int, n: int, T: int, dtype: Any = np.uint8, stride: int | None = None):
        self.file, self.start, self.shape, self.dtype, self.stride = file, start, (n, T), np.dtype(dtype), stride or T

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> Any:
        n, T = self.shape
        if isinstance(rows, slice):
            first, last, step = rows.indices(n)
            if step != 1:
                raise IndexError("blocks of a file cannot be sliced with a step")
            start = self.start + first * self.stride
            return Blocks(self.file, start, max(0, last - first), T, self.dtype, self.stride)
        rows = np.asarray(rows)
        if rows.dtype.kind not in "iu" or (rows.size and not -n <= rows.min() <= rows.max() < n):
            raise IndexError(f"there are {n} blocks, and their indices are integers")
        found = np.empty((*rows.shape, T), self.dtype)
        for row, out in zip(rows.ravel(), found.reshape(-1, T), strict=True):
            self.file.read((self.start + int(row % n) * self.stride) * self.dtype.itemsize, out)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("to turn blocks of a file into an array, read them")
        found = self[np.arange(len(self))]
        return found if dtype is None else found.astype(dtype, copy=False)


def anywhere(blocks: Any) -> Any:
    """The blocks that begin at each token of `blocks`, up to the beginning of its last block. If `blocks` is an array,
    it holds zeros (`Source.without_inputs`), and so does the result."""
    n, T = blocks.shape
    if isinstance(blocks, Blocks):
        return Blocks(blocks.file, blocks.start, (n - 1) * blocks.stride + 1, T, blocks.dtype, stride=1)
    return np.broadcast_to(blocks[:1], ((n - 1) * T + 1, T))
