"""Makes a training loop's batches: out of memory by their indices, or from a stream that is decoded ahead.

They enter the network at `fdg_jax.Pipeline.step`.

Either way the batches are a function of (seed, step) alone, so that a run which is resumed meets the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from fdg_jax.config import Config
from fdg_jax.data.augment import epoch_order
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.source import Source
from fdg_jax.data.stream import Loader, Stream, TestBatches, TrainBatches
from fdg_jax.data.text import Text
from fdg_jax.training.loading import Loading

TEST_BATCH = 500  # at most; the largest that divides the test examples, so that one shape is compiled


class Work(NamedTuple):
    """The batches of one dispatch."""

    shape: tuple[int, int]  # batches, examples in each
    enter: Callable[[Any], object]  # takes the pipeline


class InMemory:
    """Windows of batches of a data set in memory, which the pipeline may keep on its device, or of a text in a file.

    Of a text, each of them and each test batch raises Damaged where the file has been cut short.
    """

    def __init__(self, dataset: Dataset | Text, options: Config, steps: int):
        self.dataset, self.options, self.steps = dataset, options, steps
        self.N = len(dataset.train_inputs)
        self.order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int32))  # (epoch, its order)
        self.check = dataset.check if isinstance(dataset, Text) else lambda: None
        self.kept: tuple[np.ndarray, np.ndarray] | None = None  # what the delay line keeps on its device

    def next(self, step: int) -> Work:
        """The batches after `step`: of the epoch, up to --window; the ragged last one goes alone."""
        self.check()
        rows = self.indices(step)
        shape = rows.shape[0], rows.shape[1]
        if isinstance(self.dataset, Text) and self.options.engine != "delay-line":
            # Read here, so that a batch which cannot be read leaves the pipeline between two batches.
            inputs, labels = (blocks[rows.ravel()] for blocks in (self.dataset.train_inputs, self.dataset.train_labels))
            rows = np.arange(rows.size).reshape(shape)
        else:
            if self.kept is None:
                self.kept = np.asarray(self.dataset.train_inputs), np.asarray(self.dataset.train_labels)
            inputs, labels = self.kept
        return Work(shape, lambda pipeline: pipeline.train(inputs, labels, rows))

    def indices(self, step: int) -> np.ndarray:
        """[W, batch] int32. Windows lie on a grid from the epoch's start, so a resumed run has the same."""
        B, W, full = self.options.batch_size, self.options.window or 1, self.N // self.options.batch_size
        order, batch = self.place(step)
        if batch == full:
            return order[None, full * B :]
        W = min(W - batch % W, full - batch, self.steps - step)
        return order[batch * B : (batch + W) * B].reshape(W, B)

    def place(self, step: int) -> tuple[np.ndarray, int]:
        """(the order of the examples in the epoch of the batch after `step`, the number of that batch in it)."""
        epoch, batch = divmod(step, -(-self.N // self.options.batch_size))
        if self.order[0] != epoch:
            self.order = epoch, epoch_order(self.N, self.options.seed, epoch)
        return self.order[1], batch

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The batch after `step`, which may have been entered before."""
        B, (order, batch) = self.options.batch_size, self.place(step)
        rows = order[batch * B : (batch + 1) * B]
        return self.dataset.train_inputs[rows], self.dataset.train_labels[rows]

    def test(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Of images up to 500; of tokens, whose outputs are large, at most a training batch's number of examples."""
        inputs, labels = self.dataset.test_inputs, self.dataset.test_labels
        size = test_batch(len(inputs), TEST_BATCH if self.dataset.unit == "images" else self.options.batch_size)
        for start in range(0, len(inputs), size):
            self.check()
            rows = slice(start, start + size)
            yield np.asarray(inputs[rows]), np.asarray(labels[rows])

    def close(self) -> None: ...


class Streamed:
    """Batch after batch, made ahead of time. The workers are begun with the first one and live as long as the run.

    check: called now and then while a batch is waited for; what it raises ends the waiting.
    """

    def __init__(self, stream: Stream, options: Config, check: Callable[[], None]):
        self.stream, self.options, self.check = stream, options, check
        self.loader: Loading | None = None
        self.at = -1  # the step that the loader's next batch comes after

    def next(self, step: int) -> Work:
        """The batch after `step`. Raises Damaged where one of its images cannot be decoded, and LoaderFailed where a
        process that decodes them has died."""
        if self.loader is None or self.at != step:
            self.close()
            batches = TrainBatches(self.stream, self.options.batch_size, self.options.seed)
            self.loader = Loading(Loader(batches, start=step), self.check)
        batch = next(self.loader)
        self.at = step + 1
        return Work((1, len(batch[1])), lambda pipeline: pipeline.step(batch))

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The batch after `step`, made again."""
        return TrainBatches(self.stream, self.options.batch_size, self.options.seed)[step]

    def test(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """In batches of at most the training batch's size, which is known to fit into the device's memory."""
        size = test_batch(len(self.stream.test_inputs), self.options.batch_size)
        with Loading(Loader(TestBatches(self.stream, size)), self.check) as loader:
            yield from loader

    def close(self) -> None:
        if self.loader is not None:
            self.loader.close()
            self.loader = None


def feed(
    source: Source, options: Config, steps: int, check: Callable[[], None] = lambda: None
) -> InMemory | Streamed:
    """source: a data set of any kind. check: called now and then while a batch is waited for; what it raises ends the
    waiting."""
    if isinstance(source, Stream):
        return Streamed(source, options, check)
    return InMemory(cast(Dataset | Text, source), options, steps)


def test_batch(examples: int, most: int) -> int:
    """Examples in a test batch: the largest divisor up to `most`, unless there is only a small one."""
    even = max(size for size in range(1, min(most, examples) + 1) if examples % size == 0)
    return even if even > most // 5 or even == examples else min(most, examples)


test_batch.__test__ = False  # type: ignore[attr-defined]  # its name is not meant for pytest
