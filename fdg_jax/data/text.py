"""Text as a data set: the bytes of files in blocks of T.

The vocabulary is the 256 values of a byte, so nothing is built, kept or fitted. Block i has bytes iT .. iT+T-1 of the
text as inputs, and of each the next byte as label. So inputs and labels are two views of one file, which takes no
memory: what a batch needs is read for it. The last tenth of the blocks is for testing.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fdg_jax.data.blocks import Blocks, OpenFile
from fdg_jax.data.cache import cache_dir
from fdg_jax.durable import make_private, temporary_beside
from fdg_jax.errors import BadInput, reason

BLOCK_SIZE = 128  # the default
TEST_PART = 10  # one block of so many
CHUNK = 2**20


class Text(NamedTuple):
    """Blocks of T bytes: N for training and M for testing. Its members are those of `Source`."""

    name: str
    train_inputs: Blocks | np.ndarray  # [N, T] uint8
    train_labels: Blocks | np.ndarray  # [N, T] uint8, the same bytes, one further
    test_inputs: Blocks | np.ndarray  # [M, T] uint8
    test_labels: Blocks | np.ndarray  # [M, T] uint8
    sha256: str  # of the whole text
    files: tuple[str, ...]  # their names, for people
    classes: int = 256
    note: str = ""  # what the user must know about this run's data
    fingerprint: dict[str, Any] | None = None  # of the whole data set, once computed
    content: OpenFile | None = None  # what the blocks are read from

    @property
    def unit(self) -> str:
        """What speed is counted in: a byte is a token."""
        return "tokens"

    @property
    def per_example(self) -> int:
        """T, the tokens of a block."""
        return self.train_inputs.shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """(T,)"""
        return self.train_inputs.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        """uint8, in which no byte becomes larger."""
        return self.train_inputs.dtype

    @property
    def labels_shape(self) -> tuple[int, ...]:
        """(T,): a label for each token."""
        return self.train_labels.shape[1:]

    @property
    def labels_dtype(self) -> np.dtype:
        """uint8"""
        return self.train_labels.dtype

    def first(self, n: int | None) -> Text:
        """This text with the first n training blocks only; None for all."""
        return self._replace(train_inputs=self.train_inputs[:n], train_labels=self.train_labels[:n])

    def held_out(self, n: int) -> Text:
        """This text with the last n training blocks as its test blocks, and trained on the others."""
        left = len(self.train_inputs) - n
        return self.first(left)._replace(test_inputs=self.train_inputs[left:], test_labels=self.train_labels[left:])

    def check(self) -> None:
        """Raises Damaged where the file has been cut short since it was opened. It takes a microsecond."""
        if self.content is not None:
            self.content.check()

    def without_inputs(self) -> Text:
        """This text for a process that needs labels only: inputs of zeros, which take no memory."""
        zeros = [np.broadcast_to(np.uint8(0), inputs.shape) for inputs in (self.train_inputs, self.test_inputs)]
        return self._replace(train_inputs=zeros[0], test_inputs=zeros[1])

    def train_transform(self, seed: int) -> Callable[[Any, Any], Any]:
        """Tokens as int32. There is no augmentation."""
        del seed
        return lambda tokens, step: tokens.astype(np.int32)

    def test_transform(self) -> Callable[[Any], Any]:
        """Tokens as int32."""
        return lambda tokens: tokens.astype(np.int32)

    def described(self) -> str:
        """How many blocks there are, and of which files."""
        of = self.files[0] if len(self.files) == 1 else f"{len(self.files)} files"
        train, test = len(self.train_inputs), len(self.test_inputs)
        return f"{train:,} training and {test:,} test blocks of {self.per_example} bytes of {of}"

    def measures(self, test_loss: float | None) -> dict[str, float | None]:
        """The loss of a byte in bits instead of nats."""
        return {"test_bits_per_byte": None if test_loss is None else test_loss / math.log(2)}


def read(name: str, files: Sequence[Path], block_size: int) -> Text:
    """Cuts files into blocks, which may run over the end of one file into the next.

    Arguments:
        name: of the data set.
        files: one or more. Several are copied, once, into one file in the user's cache directory.
        block_size: T.

    Raises:
        BadInput: a file cannot be read, or there are fewer bytes than two blocks need.
    """
    sha256 = digest(files)
    path = files[0] if len(files) == 1 else joined(files, sha256)
    names = tuple(file.name for file in files)
    content = OpenFile(path)
    blocks = (content.size - 1) // block_size if content.size else 0
    if blocks < 2:
        fact = f"{', '.join(names)}: {content.size:,} bytes make {max(0, blocks)} blocks of --block-size {block_size}"
        raise BadInput(f"{fact}, and one each is needed for training and testing. Use more text or smaller blocks.")
    inputs, labels = (Blocks(content, shift, blocks, block_size) for shift in (0, 1))
    train = blocks - max(1, blocks // TEST_PART)
    parts = inputs[:train], labels[:train], inputs[train:], labels[train:]
    return Text(name, *parts, sha256, names, content=content)


def digest(files: Sequence[Path]) -> str:
    """sha256 over the bytes of the files, one after the other. Raises BadInput if one cannot be read."""
    found = hashlib.sha256()
    for path in files:
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # a folder; and opening a pipe would wait for a writer
                raise BadInput(f"--text: {path} is no file. Name one or more files.")
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    found.update(chunk)
        except OSError as error:
            raise BadInput(f"--text: {path} cannot be read: {reason(error)}. Name one or more files.") from None
    return found.hexdigest()


def joined(files: Sequence[Path], sha256: str) -> Path:
    """One file with the content of several, in the cache directory, kept for the next time. Raises BadInput."""
    path = cache_dir() / f"text-{sha256}.bin"
    try:
        if path.is_file() and digest([path]) == sha256:
            return path
        make_private(path.parent)
        temporary = temporary_beside(path)
        try:
            with temporary.open("wb") as whole:
                for each in files:
                    with each.open("rb") as part:
                        shutil.copyfileobj(part, whole, CHUNK)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        fact = f"--text: {len(files)} files cannot be joined in {path.parent}: {reason(error)}"
        raise BadInput(f"{fact}. Join them yourself, or choose another place with XDG_CACHE_HOME.") from None
    if digest([path]) != sha256:
        raise BadInput("--text: a file has changed while it was read. Start again when nobody writes to it.")
    return path
