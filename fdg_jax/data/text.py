"""Text as a data set: the bytes of files in blocks of T.

The vocabulary is the 256 values of a byte, so no tokenizer is trained or stored. The inputs of block i are the bytes iT
.. iT+T-1 of the text. The label of a byte is the next byte. So inputs and labels are two views of one file. The file
takes no memory, since each batch is read when it is needed. The last tenth of the blocks is for testing.

`Blocks` are like an array that is read from the file when it is indexed. A memory map would need less code. But if a
mapped file is cut short, the process is killed (SIGBUS) when it reads there. Here a file that is cut short causes an
ordinary error.
"""

import dataclasses
import hashlib
import math
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fdg_jax.data.dataset import Source
from fdg_jax.durable import make_private
from fdg_jax.errors import BadInput, Damaged, reason
from fdg_jax.machine.facts import cache_dir
from fdg_jax.machine.output import say


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


BLOCK_SIZE = 128  # the default
TEST_PART = 10  # one block in this many is for testing
CHUNK = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Text(Source):
    """Blocks of T bytes, or other tokens: N for training and M for testing."""

    name: str
    train_blocks: Blocks | np.ndarray  # [N, T] uint8 (other tokens: uint16 or uint32), the inputs
    train_labels: Blocks | np.ndarray  # [N, T], the inputs' tokens, shifted by one
    test_blocks: Blocks | np.ndarray  # [M, T]
    test_labels: Blocks | np.ndarray  # [M, T]
    sha256: str  # of the whole text
    files: tuple[str, ...]  # their names, for people
    classes: int = 256
    note: str = ""  # what the user must know about this run's data
    fingerprint: dict[str, Any] | None = None  # of the whole data set, once computed
    content: Any = None  # the OpenFile of the blocks, or what checks like one
    tokenizer: str | None = None  # sha256 of the tokenizer, if it is known
    bytes_per_token: float | None = None  # of the text that the test's tokens were made of, if it is known

    parts = ("blocks", "labels")
    unit = "tokens"  # a byte is a token

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        """The dtype of the stored tokens. It is read from the labels, since inputs may be zeros
        (`Source.without_inputs`)."""
        return self.train_labels.dtype

    labels_dtype = dtype  # type: ignore[assignment]

    @property
    def of_bytes(self) -> bool:
        """Whether a token is a byte."""
        return self.dtype == np.uint8

    @property
    def per_example(self) -> int:
        """T, the tokens of a block."""
        return self.train_blocks.shape[1]

    @property
    def labels_shape(self) -> tuple[int, ...]:
        """(T,): a label for each token."""
        return self.shape

    def check(self) -> None:
        """Raises Damaged if the file has been cut short since it was opened. The check takes a microsecond."""
        if self.content is not None:
            self.content.check()

    def train_transform(self, seed: int) -> Callable[[Any, Any], Any]:
        """The function that returns tokens as int32, without augmentation."""
        del seed
        return lambda tokens, step: tokens.astype(np.int32)

    def test_transform(self) -> Callable[[Any], Any]:
        return lambda tokens: tokens.astype(np.int32)

    def described(self) -> str:
        """The number of blocks and the names of the files."""
        of = self.files[0] if len(self.files) == 1 else f"{len(self.files)} files"
        train, test = len(self.train_blocks), len(self.test_blocks)
        tokens = "bytes" if self.of_bytes else f"tokens ({self.classes:,} different)"
        return f"{train:,} training and {test:,} test blocks of {self.per_example} {tokens} from {of}"

    def measures(self, test_loss: float | None) -> dict[str, float | None]:
        """The test loss in bits per byte, if the number of bytes per token is known; else {}."""
        size = 1 if self.of_bytes else self.bytes_per_token
        if not size:
            return {}
        return {"test_bits_per_byte": None if test_loss is None else test_loss / math.log(2) / size}


def read(name: str, files: Sequence[Path], block_size: int) -> Text:
    """Cuts files into blocks, which may run over the end of one file into the next.

    Arguments:
        name: the name of the data set.
        files: one or more. Several are joined in an unnamed temporary file in the user's cache directory.
        block_size: T.

    Raises:
        BadInput: a file cannot be read, or there are fewer bytes than two blocks need.
    """
    whole = None
    if len(files) > 1:
        try:
            make_private(cache_dir())
            whole = tempfile.TemporaryFile(dir=cache_dir(), buffering=0)  # noqa: SIM115 - it stays open for reading
        except OSError as error:
            fact = f"--text: {len(files)} files cannot be joined in {cache_dir()}: {reason(error)}"
            raise BadInput(f"{fact}. Join them yourself, or choose another place with XDG_CACHE_HOME.") from None
    sha256, binary = digest(files, whole)
    names, note = tuple(file.name for file in files), ""
    if binary:
        note = f"NOT text: {binary} has zero bytes, like a file of tokens. The run trains on its bytes all the same."
        say(note)
    content = OpenFile(files[0] if whole is None else Path(", ".join(names)), whole)
    blocks = (content.size - 1) // block_size if content.size else 0
    if blocks < 2:
        fact = f"{', '.join(names)}: {content.size:,} bytes make {max(0, blocks)} blocks of --block-size {block_size}"
        raise BadInput(f"{fact}, but training and testing need one block each. Use more text or smaller blocks.")
    inputs, labels = (Blocks(content, shift, blocks, block_size) for shift in (0, 1))
    parts = without_last_tenth(inputs, labels)
    return Text(name, *parts, sha256, names, note=note, content=content)


def without_last_tenth(inputs: Blocks, labels: Blocks) -> tuple[Blocks, Blocks, Blocks, Blocks]:
    """(training inputs, training labels, test inputs, test labels). The last of TEST_PART parts is for testing."""
    train = len(inputs) - max(1, len(inputs) // TEST_PART)
    return inputs[:train], labels[:train], inputs[train:], labels[train:]


def digest(files: Sequence[Path], copy: BinaryIO | None = None) -> tuple[str, Path | None]:
    """(sha256 of the bytes of all files, one after the other; a file that contains a byte 0, or None). Raises BadInput
    if a file cannot be read.

    Arguments:
        copy: a file to which the bytes are written.
    """
    found, binary = hashlib.sha256(), None
    for path in files:
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # a folder, or a pipe, which would wait for a writer
                raise BadInput(f"--text: {path} is not a file. Name one or more files.")
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    found.update(chunk)
                    binary = path if b"\0" in chunk else binary
                    if copy:
                        copy.write(chunk)
        except OSError as error:
            fact = f"--text: {path} cannot be read or copied: {reason(error)}"
            raise BadInput(f"{fact}. Name one or more files.") from None
    return found.hexdigest(), binary
