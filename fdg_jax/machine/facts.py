"""Facts about the machine that affect the speed of a run or the last bits of its numbers, to be recorded with it.

It also finds the cores that a process may use, pins to some of them, and measures the share of other processes.
"""

import os
import platform
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fdg_jax.machine import gpu_flags, jax_settings

CAN_PIN = hasattr(os, "sched_setaffinity")  # Linux


def describe() -> dict[str, Any]:
    """The part of config.json about the machine, as {name: value}. Starts JAX's backend."""
    import jax

    backend = jax.default_backend()
    return {
        "platform": platform.platform(),
        "processor": processor_name(),
        "backend": backend,
        "cpus": os.cpu_count(),
        "usable_cores": usable_cores(),
        # This and the number of cores decide over how many threads XLA splits a convolution, and so how sums are
        # rounded.
        "cpu_devices": jax.local_device_count() if backend == "cpu" else None,
        # None is JAX's default, with which NVIDIA GPUs since Ampere may compute float32 products in TF32.
        "matmul_precision": getattr(jax.config, "jax_default_matmul_precision", None),
        "xla_flags": gpu_flags.without_files(os.environ.get("XLA_FLAGS")),
        "jax_settings": jax_settings.current(),
    }


def usable_cores() -> int | None:
    """How many cores this process may use: fewer than the machine has if the process is pinned."""
    return len(usable()) or os.cpu_count()


def cpuinfo() -> list[str]:
    """The lines of Linux's /proc/cpuinfo; [] on other systems."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def processor_name() -> str:
    """The processor's name according to the system."""
    names = [line.partition(":")[2].strip() for line in cpuinfo() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cache_dir() -> Path:
    """The user's cache directory: $XDG_CACHE_HOME/fdg_jax, by default ~/.cache/fdg_jax.

    Raises: RuntimeError for a user without a home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fdg_jax"


def python_command() -> str:
    """The interpreter's path, relative to the working directory if below it. Printed commands name this interpreter
    because fdg_jax may be installed in its environment only."""
    path, here = Path(sys.executable), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


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
