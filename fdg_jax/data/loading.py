"""Takes batches from the processes that decode images, without hanging if one of them dies.

A worker may be killed (by the kernel, when memory runs out) or stopped while it sends a batch. The reader would then
wait for ever, in grain's `next` as well as in its `close`. So a separate thread calls both, and the training loop can
still obey a signal and notice that a worker has died.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from fdg_jax.data.stream import Batch, Loader

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

    def __enter__(self) -> "Loading":
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
