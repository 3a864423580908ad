"""On what a run ran, as far as it bears on speed or on the last bits of a number: recorded."""

import os
import platform
from pathlib import Path
from typing import Any

from fdg_jax.machine import jax_settings


def describe() -> dict[str, Any]:
    """The part of config.json that is about the machine. Starts JAX's backend."""
    import jax

    backend = jax.default_backend()
    return {
        "platform": platform.platform(),
        "processor": processor_name(),
        "backend": backend,
        "cpus": os.cpu_count(),
        "usable_cores": usable_cores(),
        # With the cores it decides into how many threads XLA splits a convolution, and so how sums are rounded.
        "cpu_devices": jax.local_device_count() if backend == "cpu" else None,
        # None is JAX's default: on NVIDIA GPUs since Ampere float32 products may then be taken in TF32.
        "matmul_precision": getattr(jax.config, "jax_default_matmul_precision", None),
        # Without --xla_gpu_deterministic_ops=true a GPU need not compute the same twice (openxla.org/xla/determinism).
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "jax_settings": jax_settings.current(),
    }


def usable_cores() -> int | None:
    """How many cores this process may run on, which pinning makes fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def cpuinfo() -> list[str]:
    """Linux's description of the processor, line by line; nothing elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def processor_name() -> str:
    names = [line.partition(":")[2].strip() for line in cpuinfo() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
