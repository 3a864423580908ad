"""The cores that a process may use, pinning to some of them, and the share that other processes take."""

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CAN_PIN = hasattr(os, "sched_setaffinity")  # Linux


def usable() -> list[int]:
    """The numbers of the cores that this process may use; [] if the system does not say."""
    return sorted(os.sched_getaffinity(0)) if CAN_PIN else []


@contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """A context in which this thread stays on the given cores. A process started in this context inherits the pinning
    for all its threads.

    Arguments:
        cores: the numbers of the cores; without any, nothing changes.
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


def core_seconds(cores: Sequence[int]) -> list[float]:
    """For each of these cores, the seconds since the machine started in which it was not idle; 0 if unknown."""
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [0.0] * len(cores)
    # user nice system idle iowait irq softirq steal
    ticks = {name: sum(map(int, (*fields[:3], *fields[5:8]))) for name, *fields in map(str.split, lines)
             if name.startswith("cpu")}  # fmt: skip
    return [ticks.get(f"cpu{core}", 0) / os.sysconf("SC_CLK_TCK") for core in cores]


def others_percent(by_core: Sequence[float], busy: float, seconds: float) -> float:
    """Percent of the cores' time that other processes took.

    by_core: seconds that each core was not idle. busy: seconds of the measured process. seconds: length of the window.
    """
    return max(0.0, 100 * (sum(by_core) - busy) / (len(by_core) * seconds))


class OtherProcesses:
    """The share of this process's cores that other processes use, measured from now on."""

    def __init__(self) -> None:
        self.cores = usable()
        self.begun = core_seconds(self.cores), time.process_time(), time.perf_counter()

    def percent(self) -> float:
        """The percentage of the cores' time that others used since the beginning; 0 if the system does not say."""
        before, busy, start = self.begun
        by_core = [now - then for now, then in zip(core_seconds(self.cores), before, strict=True)]
        return others_percent(by_core, time.process_time() - busy, time.perf_counter() - start) if by_core else 0.0
