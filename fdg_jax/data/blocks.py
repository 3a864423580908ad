"""Blocks of a file's bytes, like an array that is read from the file when it is indexed.

A memory map would be shorter. But if a mapped file is cut short, reading it kills the process (SIGBUS) at any moment. A
short read is an ordinary error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fdg_jax.errors import Damaged, reason


class OpenFile:
    """A file that is kept open, so that it stays the same file if its name is reused. file: the open file, if there is
    one already."""

    def __init__(self, path: Path, file: Any = None):
        self.path = path
        self.file = file or path.open("rb", buffering=0)
        self.size = os.fstat(self.file.fileno()).st_size

    def check(self) -> None:
        """Raises Damaged if the file has been cut short since it was opened. The check takes a microsecond."""
        if (left := os.fstat(self.file.fileno()).st_size) < self.size:
            raise Damaged(f"{self.path} was cut short: {left:,} of {self.size:,} bytes are left.")

    def read(self, start: int, out: np.ndarray) -> None:
        """Fills `out`, contiguous uint8, with the bytes from `start` on. Raises Damaged if the file has too few
        bytes."""
        rest = out.reshape(-1).data
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
    """n blocks of T bytes of a file, from byte `start` on: [n, T] uint8.

    A slice returns `Blocks` again. An integer, an array of integers, and `np.array(blocks)` read from the file.

    Raises:
        Damaged: while reading, if the file has been cut short.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, file: OpenFile, start: int, n: int, T: int):
        self.file, self.start, self.shape = file, start, (n, T)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> Any:
        n, T = self.shape
        if isinstance(rows, slice):
            first, last, step = rows.indices(n)
            if step != 1:
                raise IndexError("blocks of a file have no slices with a step")
            return Blocks(self.file, self.start + first * T, max(0, last - first), T)
        rows = np.asarray(rows)
        if rows.dtype.kind not in "iu" or (rows.size and not -n <= rows.min() <= rows.max() < n):
            raise IndexError(f"there are {n} blocks, and their indices are integers")
        found = np.empty((*rows.shape, T), np.uint8)
        for row, out in zip(rows.ravel(), found.reshape(-1, T), strict=True):
            self.file.read(self.start + int(row % n) * T, out)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("blocks of a file become an array by reading them")
        found = np.empty(self.shape, np.uint8)
        self.file.read(self.start, found)
        return found if dtype is None else found.astype(dtype, copy=False)
