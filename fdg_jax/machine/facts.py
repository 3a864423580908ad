"""Facts about the machine that affect the speed of a run or the last bits of its numbers, to be recorded with it."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

from fdg_jax.machine import gpu_flags, jax_settings


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
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


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
