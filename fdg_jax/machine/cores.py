"""Which cores a process may use, and how it is started on some of them only."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

CAN_PIN = hasattr(os, "sched_setaffinity")  # Linux


def usable() -> list[int]:
    """The numbers of the cores that this process may use; [] where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if CAN_PIN else []


@contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """A context in which this thread stays on the cores. A process that it starts inherits that for all its threads.

    Arguments:
        cores: their numbers; none changes nothing.
    """
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
