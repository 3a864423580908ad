"""A data set that memory does not hold: its images are read, decoded and augmented while others are trained on.

What differs from a `Dataset` is only that the images are still encoded. Batch g of a run is a function of
(seed, g) and of nothing else: g says which epoch it is in and which images of that epoch's order it has, and the
crop of each follows from (seed, epoch, image). So a run is resumed by beginning to count elsewhere, and the number of
processes that share the work (grain's, each making whole batches) changes nothing but the speed.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from fdg_jax.data import jpeg
from fdg_jax.errors import BadInput
from fdg_jax.machine.stderr import say

WORKERS = "FDG_JAX_LOADER_WORKERS"
MOST_WORKERS = 16  # without a wish: enough for thousands of images/s
AHEAD = 2  # batches that a worker has ready, beside the one it makes
SAMPLE = 64  # images of each split that are decoded before anything is begun
ENDLESS = 2**40  # batches; whoever takes them knows when to stop

Batch = tuple[np.ndarray, np.ndarray]  # images [B, H, W, C] uint8, labels [B] int32


class Encoded(Protocol):
    """Labelled images as they lie on a disk. Picklable, as workers get a copy of it."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Encoded: ...

    def read(self, i: int, /) -> tuple[bytes, int, str]:
        """(the encoded image, its label, where it lies in words for an error). Damaged where it can't be read."""
        ...

    def listing(self) -> tuple[list[np.ndarray], np.ndarray]:
        """(what is known of names, labels and order without reading an image, the sizes of the files in bytes). It is
        the same for a copy at another place. Damaged where a file is gone."""
        ...


class Stream(NamedTuple):
    """A data set, still encoded; the names are those of `Dataset`, so that most code need not know which it has."""

    name: str
    train_images: Encoded
    test_images: Encoded
    classes: int  # labels are 0 .. classes-1
    shape: tuple[int, int, int]  # (H, W, C) of a decoded image
    mean: tuple[float, ...]  # [C] of the training images scaled to 0..1
    std: tuple[float, ...]  # [C]
    note: str = ""  # what a person must know about this run's data
    pad: int = 0  # nothing is left for the device to crop or mirror: that was done while decoding
    flip: bool = False
    fingerprint: dict[str, Any] | None = None  # of the whole data set, where somebody wants it

    def first(self, n: int | None) -> Stream:
        """With the first n training images only; all of them for None."""
        return self._replace(train_images=self.train_images[:n])

    def check_sample(self) -> Stream:
        """Decodes a few images of either split, so that what is wrong with all of them is known at once."""
        for images in (self.train_images, self.test_images):
            for i in sample_indices(len(images)):
                content, _, where = images.read(i)
                jpeg.decode_image(content, where)
        return self


def sample_indices(images: int) -> list[int]:
    """The numbers of a few of so many images, evenly spread."""
    return np.linspace(0, images - 1, min(SAMPLE, images), dtype=int).tolist()


class TrainBatches:
    """All batches of a run by their number g = 0, 1, ...; an epoch's last one is smaller where it must be."""

    def __init__(self, stream: Stream, batch_size: int, seed: int):
        self.images, self.side, self.batch_size, self.seed = stream.train_images, stream.shape[0], batch_size, seed
        self.per_epoch = math.ceil(len(self.images) / batch_size)
        self.order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int32))

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, g) -> Batch:
        epoch, batch = divmod(int(g), self.per_epoch)
        number, order = self.order  # read and written as one, as threads may share it
        if number != epoch:
            # RandomState's stream is frozen for good, as the order of a resumed run must be.
            order = np.random.RandomState([self.seed, epoch]).permutation(len(self.images)).astype(np.int32)
            self.order = epoch, order
        return _gathered([self.example(epoch, int(i)) for i in order[batch * self.batch_size :][: self.batch_size]])

    def example(self, epoch: int, i: int) -> tuple[np.ndarray, int]:
        content, label, where = self.images.read(i)
        image = jpeg.decode_image(content, where)
        return jpeg.train_crop(image, self.side, jpeg.random_numbers(self.seed, epoch, i)), label


class TestBatches:
    """The test images in their order, centred."""

    __test__ = False  # its name is not meant for pytest

    def __init__(self, stream: Stream, batch_size: int):
        self.images, self.side, self.batch_size = stream.test_images, stream.shape[0], batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.batch_size)

    def __getitem__(self, g) -> Batch:
        rows = range(len(self.images))[int(g) * self.batch_size :][: self.batch_size]
        return _gathered([self.example(i) for i in rows])

    def example(self, i: int) -> tuple[np.ndarray, int]:
        content, label, where = self.images.read(i)
        return jpeg.test_crop(jpeg.decode_image(content, where), self.side), label


def _gathered(examples: list[tuple[np.ndarray, int]]) -> Batch:
    images, labels = zip(*examples, strict=True)
    return np.stack(images), np.asarray(labels, np.int32)


class Loader:
    """Batches from number `start` on, made ahead of time. As a context, or `close()` it: that ends the workers.

    workers: processes; 0 decodes in threads of this one; None: FDG_JAX_LOADER_WORKERS, else a process for every core
    but one (on a single core none), at most 16 and at most what the shared memory has room for.
    """

    def __init__(self, batches: TrainBatches | TestBatches, start: int = 0, workers: int | None = None):
        import grain
        from absl import flags

        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # grain asks for flags of its own, which only absl's `app.run` would parse
        workers = wanted_workers(batches) if workers is None else workers
        threads = 0 if workers else max(1, cores() - 1)
        source: Any = batches
        # grain gives worker w of n the batches w, w + n, ... and takes them from the workers in turn: in order.
        made = grain.MapDataset.source(source)[start:].to_iter_dataset(grain.ReadOptions(threads, AHEAD * threads))
        made = made.mp_prefetch(grain.MultiprocessingOptions(workers, AHEAD), worker_init_fn=prepare_worker)
        self.workers, self.iterator = workers, iter(made)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Raises Damaged where an image of the batch cannot be decoded."""
        return next(self.iterator)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.iterator.close()


def prepare_worker(number: int, count: int) -> None:
    """In a new worker: signals, which often go to a whole group of processes, are for the trainer, which ends its
    workers itself; and without a trainer they end."""
    import signal
    import threading
    from multiprocessing import connection, parent_process

    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent: Any = parent_process()

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wanted_workers(batches: TrainBatches | TestBatches) -> int:
    """How many processes decode: as the environment says, else all cores but one, as far as there is memory to share
    and there are batches."""
    asked = os.environ.get(WORKERS)
    if asked:
        if not asked.isdecimal():
            raise BadInput(f"{WORKERS}={asked}: it is the number of processes that decode images. Use 0 or more.")
        return int(asked)
    workers = min(cores() - 1, MOST_WORKERS, len(batches))
    return min(workers, workers_that_fit(batches.batch_size * batches.side**2 * 3, workers))


def workers_that_fit(batch_bytes: int, workers: int) -> int:
    """How many workers the shared memory has room for, through which batches come; says so where it is too few."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:  # a system that has it elsewhere, and without a bound
        return workers
    fit = free // (batch_bytes * (AHEAD + 2))
    if fit < workers:
        say(
            f"/dev/shm has {free / 2**20:,.0f} MiB free, room for the batches of {fit} of {workers} processes that "
            f"would decode images. A larger one is faster (in a container: --shm-size)."
        )
    return min(fit, workers)
