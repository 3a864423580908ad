"""Keeps Orbax from reporting one failed save, or one damaged checkpoint, several times.

Orbax raises the first error, which becomes a message of ours. It logs the others, each with a traceback. asyncio logs
errors of tasks that nobody awaited. And tensorstore prints that the event loop is closed when it finishes late.
"""

import contextlib
import functools
import gc
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from types import TracebackType

LOGGERS = ("absl", "asyncio")


@contextlib.contextmanager
def orbax() -> Iterator[None]:
    """A context for saving a checkpoint and cleaning up after it, or for reading one: repeated reports of a failure are
    dropped."""
    ignore_late_ends()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(keep)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(keep)


@functools.cache
def ignore_late_ends() -> None:
    """From now on nothing is printed of a closed event loop: tensorstore may finish long after Orbax has failed."""
    hook = sys.unraisablehook

    def unless_closed(unraisable) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "loop is closed" in str(unraisable.exc_value)):
            hook(unraisable)

    sys.unraisablehook = unless_closed


def forget_tasks() -> None:
    """Collects failed tasks now, inside the context: asyncio and Python report them when their memory is freed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        gc.collect()


def keep(record: logging.LogRecord) -> bool:
    """Whether to log a record: only if it is not Orbax's and has no traceback through Orbax."""
    return "orbax" not in record.pathname and not (record.exc_info and through_orbax(record.exc_info[2]))


def through_orbax(trace: TracebackType | None) -> bool:
    """Whether a traceback has a frame of Orbax."""
    return any("orbax" in frame.filename for frame in traceback.extract_tb(trace))
