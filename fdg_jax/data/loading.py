"""Takes batches from the processes that decode images, without hanging if one of them dies.

A worker may be killed (by the kernel, when memory runs out) or stopped while it sends a batch. The reader would then
wait for ever, in grain's `next` as well as in its `close`. So a separate thread calls both, and the training loop can
still obey a signal and notice that a worker has died.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from fdg_jax.data.stream import Batch, Loader

LOOK_SECONDS = 0.2  # between two checks of signals and workers during the wait for a batch
DEAD_SECONDS = 5.0  # to wait for a batch after a worker has died: grain notices most deaths itself
CLOSE_SECONDS = 5.0  # for workers to end by themselves

abandoned: list[Thread] = []  # threads that wait for ever; the process ends without them


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
        self.wanted: SimpleQueue[bool] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Batch | None, BaseException | None]] = SimpleQueue()
        self.thread = Thread(target=self.take, name="loader", daemon=True)
        self.thread.start()

    def take(self) -> None:
        """The thread: takes a batch from grain whenever one is wanted, and closes the loader at the end."""
        while self.wanted.get():
            try:
                self.answers.put((next(self.loader), None))
            except BaseException as error:  # raised again in the waiting thread
                self.answers.put((None, error))
        with contextlib.suppress(Exception):  # errors of a closed loader concern nobody
            self.loader.close()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch. Raises LoaderFailed if a worker has died, and the exceptions of `check` and of the loader."""
        self.wanted.put(True)
        batch, error = self.answer()
        self.taken += 1
        if self.taken <= self.loader.workers:  # workers start one after another
            self.look()
        if error is None:
            assert batch is not None
            return batch
        if dead := self.dead():
            self.check()  # a signal to the whole process group explains the death better
            raise LoaderFailed(describe_deaths(dead)) from error
        raise error

    def answer(self) -> tuple[Batch | None, BaseException | None]:
        """Returns the batch, or else the exception of the loader. Raises LoaderFailed if a worker has died."""
        noticed = None  # when a worker was first seen dead
        while True:
            try:
                return self.answers.get(timeout=LOOK_SECONDS)
            except Empty:
                self.check()
            self.look()
            dead = self.dead()
            noticed = noticed or (time.monotonic() if dead else None)
            if noticed and time.monotonic() - noticed > DEAD_SECONDS:
                raise LoaderFailed(describe_deaths(dead))

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
        self.wanted.put(False)
        if not self.dead():
            self.thread.join(CLOSE_SECONDS)
        if self.thread.is_alive():
            for worker in self.workers:
                worker.kill()
            self.thread.join(1.0)
        if self.thread.is_alive():
            abandoned.append(self.thread)


def describe_deaths(dead: list[Any]) -> str:
    """A sentence on how the first of these workers died."""
    worker = dead[0]
    how = f"with exit code {worker.exitcode}"
    if worker.exitcode < 0:
        how = f"killed by {signal.Signals(-worker.exitcode).name}"
    fact = f"a process that decodes images (number {worker.pid}) was ended from outside, {how}"
    if worker.exitcode == -signal.SIGKILL:
        fact += "; the kernel does that when memory runs out, and fewer of them (FDG_JAX_LOADER_WORKERS) need less"
    return f"{fact}."


def leave(code: int) -> None:
    """Ends this process at once if one of its threads waits for ever, which would block Python's own exit."""
    if any(thread.is_alive() for thread in abandoned):
        os._exit(code)
