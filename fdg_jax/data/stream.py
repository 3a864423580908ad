"""A data set that does not fit into memory: images are read, decoded and augmented while the training runs.

Only its encoded images make it differ from a `Dataset`. Batch g of a run is a function of (seed, g). g gives the epoch
and the place in that epoch's order; (seed, epoch, image) gives each crop. So a run resumes by starting at another g.
The number of decoding processes (grain's workers, each of which makes whole batches) changes only the speed.

`Loading` takes batches from the processes that decode images, without hanging if one of them dies. A worker may be
killed (by the kernel, when memory runs out) or stopped while it sends a batch. The reader would then wait for ever, in
grain's `next` as well as in its `close`. So a separate thread calls both, and the training loop can still obey a signal
and notice that a worker has died.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from fdg_jax.data import jpeg
from fdg_jax.data.dataset import Source
from fdg_jax.data.files import Encoded
from fdg_jax.data.order import epoch_order
from fdg_jax.errors import BadInput
from fdg_jax.machine.facts import usable_cores
from fdg_jax.machine.output import say
from fdg_jax.machine.signals import IMPATIENT, PATIENT

WORKERS = "FDG_JAX_LOADER_WORKERS"
MOST_WORKERS = 16  # the default's limit: enough for thousands of images/s
AHEAD = 2  # batches that a worker has ready, besides the one it makes
SAMPLE = 64  # images of each split that are decoded as a check before a run
ENDLESS = 2**40  # batches; the caller knows when to stop

Batch = tuple[np.ndarray, np.ndarray]  # images [B, H, W, C] uint8, labels [B] int32


@dataclasses.dataclass(frozen=True, eq=False)
class Stream(Source):
    """An encoded data set. Its fields are named as in `Dataset`, so that most code works with both."""

    name: str
    train_images: Encoded
    test_images: Encoded
    classes: int  # labels are 0 .. classes-1
    side: int  # height and width of a decoded image
    mean: tuple[float, ...]  # [C] of the training images scaled to 0..1
    std: tuple[float, ...]  # [C]
    note: str = ""  # what the user must know about this run's data
    pad: int = 0  # cropping and mirroring are done while decoding, not on the device
    flip: bool = False
    fingerprint: dict[str, Any] | None = None  # of the whole data set, once computed
    pixels: bool = True  # whether images are decoded

    parts = ("images",)  # the labels are read with them

    @property
    def shape(self) -> tuple[int, ...]:
        """(H, W, C) of a decoded image."""
        return (self.side, self.side, 3)

    def without_inputs(self) -> Stream:
        """This data set for a process that needs labels only: black images, without decoding."""
        return self._replace(pixels=False)

    def check_sample(self) -> Stream:
        """Decodes a few images of each split, so that a fault of all images is found at once. Raises Damaged."""
        for images in (self.train_images, self.test_images):
            for i in sample_indices(len(images)):
                content, _, where = images.read(i)
                jpeg.decode_image(content, where)
        return self


def sample_indices(images: int) -> list[int]:
    """The numbers of a few evenly spread images. images: how many there are."""
    return np.linspace(0, images - 1, min(SAMPLE, images), dtype=int).tolist()


class TestBatches:
    """The batches of test images in order, cropped at the centre, indexed by number."""

    __test__ = False  # its name is not meant for pytest

    def __init__(self, stream: Stream, batch_size: int):
        self.images, self.side, self.batch_size = stream.test_images, stream.side, batch_size
        self.black = None if stream.pixels else np.broadcast_to(np.uint8(0), stream.shape)

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.batch_size)

    def __getitem__(self, g) -> Batch:
        return self.batch(self.part(range(len(self.images)), int(g)), jpeg.test_crop)

    def part(self, order: Any, number: int) -> Any:
        """The part of `order` (numbers of images) that makes up a batch."""
        return order[number * self.batch_size :][: self.batch_size]

    def batch(self, rows: Iterable[int], crop: Callable[..., np.ndarray], *more: Any) -> Batch:
        """A batch of images by their numbers. crop: crop(image, side, *(each(i) for each in more))."""
        found, labels = [], []
        for i in map(int, rows):
            content, label, where = self.images.read(i)
            labels.append(label)
            if self.black is not None:
                found.append(self.black)
            else:
                found.append(crop(jpeg.decode_image(content, where), self.side, *(each(i) for each in more)))
        return np.stack(found), np.asarray(labels, np.int32)


class TrainBatches(TestBatches):
    """All batches of a run, indexed by g = 0, 1, ... The last batch of an epoch may be smaller."""

    def __init__(self, stream: Stream, batch_size: int, seed: int):
        super().__init__(stream, batch_size)
        self.images, self.seed = stream.train_images, seed
        self.order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int32))

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, g) -> Batch:
        epoch, number = divmod(int(g), super().__len__())
        known, order = self.order  # read and written in one operation, as threads share the tuple
        if known != epoch:
            order = epoch_order(len(self.images), self.seed, epoch)
            self.order = epoch, order
        return self.batch(self.part(order, number), jpeg.train_crop, lambda i: jpeg.random_numbers(self.seed, epoch, i))


class Loader:
    """An iterator over batches, which are made ahead of time. Use it as a context, or call `close()` to end the
    workers.

    Arguments:
        batches: what to iterate over.
        start: the number of the first batch.
        workers: number of processes; 0 decodes in threads of this process. None: the value of FDG_JAX_LOADER_WORKERS.
            Without this variable, one less than the number of cores, at most 16, and at most as many as fit into the
            shared memory.
    """

    def __init__(self, batches: TrainBatches | TestBatches, start: int = 0, workers: int | None = None):
        import grain
        from absl import flags

        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # grain reads its own flags, which only absl's `app.run` would parse
        workers = wanted_workers(batches) if workers is None else workers
        threads = 0 if workers else max(1, (usable_cores() or 1) - 1)
        source: Any = batches
        # grain gives worker w of n the batches w, w + n, ... and takes batches from the workers in turn, so they stay
        # in order.
        dataset = grain.MapDataset.source(source)[start:].to_iter_dataset(grain.ReadOptions(threads, AHEAD * threads))
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(workers, AHEAD), worker_init_fn=prepare_worker)
        self.workers, self.iterator = workers, iter(dataset)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch. Raises Damaged if an image cannot be decoded."""
        return next(self.iterator)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers."""
        self.iterator.close()


def prepare_worker(number: int, count: int) -> None:
    """Prepares a new worker: it ignores signals, and ends if the training process has ended.

    Signals often go to a whole process group. The training process handles them, and ends its workers itself.
    """
    import signal
    import threading
    from multiprocessing import connection, parent_process

    for each in (*IMPATIENT, *PATIENT):
        signal.signal(each, signal.SIG_IGN)
    parent: Any = parent_process()

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def wanted_workers(batches: TrainBatches | TestBatches) -> int:
    """The default number of decoding processes (see `Loader`). Raises BadInput if FDG_JAX_LOADER_WORKERS is no
    number."""
    asked = os.environ.get(WORKERS)
    if asked:
        if not asked.isdecimal():
            raise BadInput(f"{WORKERS}={asked} is not a number of processes that decode images. Use 0 or more.")
        return int(asked)
    workers = min((usable_cores() or 1) - 1, MOST_WORKERS, len(batches))
    return min(workers, workers_that_fit(batches.batch_size * batches.side**2 * 3, workers))


def workers_that_fit(batch_bytes: int, workers: int) -> int:
    """How many workers can run so that their batches fit into the shared memory, at most `workers`. Prints a line if
    not all fit."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:  # a system without such a directory has no limit
        return workers
    fit = free // (batch_bytes * (AHEAD + 2))
    if fit < workers:
        say(
            f"only {fit} instead of {workers} processes decode images: /dev/shm has {free / 2**20:,.0f} MiB free, too "
            f"little for the batches of more. To be faster, enlarge /dev/shm (in a container: --shm-size)."
        )
    return min(fit, workers)


LOOK_SECONDS = 0.2  # between two checks of signals and workers during the wait for a batch
DEAD_SECONDS = 5.0  # to wait for a batch after a worker has died: grain notices most deaths itself
CLOSE_SECONDS = 5.0  # for workers to end by themselves

abandoned: list[Future] = []  # of threads that wait for ever; the process ends without them


class LoaderFailed(Exception):
    """A process that decodes images has ended, so there are no more batches."""


class Loading:
    """The batches of a loader. Use it as a context, or call `close()`.

    check: called repeatedly during the wait for a batch; an exception from it ends the wait.
    """

    def __init__(self, loader: Loader, check: Callable[[], None]):
        self.loader, self.check = loader, check
        self.others = set(multiprocessing.active_children())
        self.workers: set[Any] = set()
        self.taken = 0
        self.thread = ThreadPoolExecutor(1, "loader")

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch. Raises LoaderFailed if a worker has died, and the exceptions of `check` and of the loader."""
        batch = self.thread.submit(next, self.loader)
        noticed = None  # when a worker was first seen dead
        while not wait([batch], LOOK_SECONDS).done:
            self.check()
            self.look()
            noticed = noticed or (time.monotonic() if self.dead() else None)
            if noticed and time.monotonic() - noticed > DEAD_SECONDS:
                raise LoaderFailed(describe_deaths(self.dead()))
        self.taken += 1
        if self.taken <= self.loader.workers:  # workers start one after another
            self.look()
        if batch.exception() and (dead := self.dead()):
            self.check()  # a signal to the whole process group explains the death better
            raise LoaderFailed(describe_deaths(dead)) from batch.exception()
        return batch.result()

    def look(self) -> None:
        """Finds this loader's worker processes: those started after the loader was made."""
        self.workers |= set(multiprocessing.active_children()) - self.others

    def dead(self) -> list[Any]:
        """Workers that did not end normally."""
        return [worker for worker in self.workers if worker.exitcode not in (None, 0)]

    def __enter__(self) -> Loading:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers: normally if that is fast, else by force."""
        self.look()
        closed = self.thread.submit(self.loader.close)  # its errors are ignored
        if self.dead() or not wait([closed], CLOSE_SECONDS).done:
            for worker in self.workers:
                worker.kill()
            wait([closed], 1.0)
        self.thread.shutdown(wait=False)
        if not closed.done():
            abandoned.append(closed)


def describe_deaths(dead: list[Any]) -> str:
    """A sentence on how the first of these workers died."""
    worker = dead[0]
    how = f"with exit code {worker.exitcode}"
    if worker.exitcode < 0:
        how = f"killed by {signal.Signals(-worker.exitcode).name}"
    fact = f"a process that decodes images (number {worker.pid}) was ended from outside, {how}"
    if worker.exitcode == -signal.SIGKILL:
        fact += "; Linux does that when memory runs out. Set FDG_JAX_LOADER_WORKERS to fewer processes"
    return f"{fact}."


def leave(code: int) -> None:
    """Ends this process at once if one of its threads waits for ever, which would block Python's own exit."""
    if not all(closed.done() for closed in abandoned):
        os._exit(code)
