"""Takes batches from the processes that decode images, without hanging if one of them dies.

A worker may be killed (by the kernel, when memory runs out) or stopped in the middle of sending a batch. Who reads from
it would then wait for ever, in grain's `next` as well as in its `close`. So both are called in a thread of their own,
and the training loop can still obey a signal and learn that a worker has died.
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

LOOK_SECONDS = 0.2  # between two looks at signals and workers while a batch is waited for
DEAD_SECONDS = 5.0  # that a batch may still take after a worker has died: grain notices most deaths itself
CLOSE_SECONDS = 5.0  # that workers have to end by themselves

abandoned: list[Thread] = []  # threads that wait for ever: the process has to end without them


class LoaderFailed(Exception):
    """A process that decodes images has ended, so there are no more batches."""


class Loading:
    """As a context, or `close()` it: the batches of a loader.

    check: called now and then while a batch is waited for; what it raises ends the waiting.
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
            except BaseException as error:  # raised again by who waits
                self.answers.put((None, error))
        with contextlib.suppress(Exception):  # nobody waits for what a loader that is closed still has to say
            self.loader.close()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Raises LoaderFailed when a worker has died, and what `check` and the loader raise."""
        self.wanted.put(True)
        batch, error = self.answer()
        self.taken += 1
        if self.taken <= self.loader.workers:  # they are begun one after another
            self.look()
        if error is None:
            assert batch is not None
            return batch
        if dead := self.dead():
            self.check()  # a signal to the whole group of processes explains it better
            raise LoaderFailed(describe_deaths(dead)) from error
        raise error

    def answer(self) -> tuple[Batch | None, BaseException | None]:
        """(the batch, what was raised instead of it). Raises LoaderFailed when a worker has died."""
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
        """Learns which processes are this loader's: those that were begun since it was made."""
        self.workers |= set(multiprocessing.active_children()) - self.others

    def dead(self) -> list[Any]:
        """Workers that ended otherwise than by themselves."""
        return [worker for worker in self.workers if worker.exitcode not in (None, 0)]

    def __enter__(self) -> "Loading":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers: in good order if that goes fast, else by force."""
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
    """Ends this process at once if a thread of it waits for ever, which would hold up Python's own end."""
    if any(thread.is_alive() for thread in abandoned):
        os._exit(code)
