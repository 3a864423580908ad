"""Keeps Orbax from telling a failed save again and again. It raises the first error, which becomes a sentence of ours.
The others it logs, each with its traceback. asyncio logs those that nobody asked for. And tensorstore prints that the
event loop is closed when it is done with what it was still writing."""

import contextlib
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
    """While a checkpoint is written, and what became of it is cleared up."""
    hook = sys.unraisablehook

    def unless_closed(unraisable) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "loop is closed" in str(unraisable.exc_value)):
            hook(unraisable)

    sys.unraisablehook = unless_closed
    for name in LOGGERS:
        logging.getLogger(name).addFilter(keep)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(keep)
        sys.unraisablehook = hook


def forget_tasks() -> None:
    """asyncio tells of a failed task, and Python of one that never began, when its memory is given back: that is now,
    and not at some later time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        gc.collect()


def keep(record: logging.LogRecord) -> bool:
    """Whether a record is to be logged: it has no traceback through Orbax."""
    return not (record.exc_info and through_orbax(record.exc_info[2]))


def through_orbax(trace: TracebackType | None) -> bool:
    return any("orbax" in frame.filename for frame in traceback.extract_tb(trace))
