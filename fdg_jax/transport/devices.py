"""Which device each stage lives on: accelerators where there are any, otherwise emulated CPU devices."""

import numbers
import warnings
from typing import Any

import jax

from fdg_jax.errors import BadInput, first_line
from fdg_jax.machine import jax_internals


def emulate_cpu(K: int) -> None:
    """Asks for at least K CPU devices. Works only before JAX computes anything; later it can but warn."""
    if isinstance(K, bool) or not isinstance(K, numbers.Integral) or K < 1:
        raise BadInput(f"emulate_cpu({K!r}): a number of devices is 1 or more. Use one for each stage.")
    if request_cpu_devices(K) or jax.default_backend() != "cpu":
        return
    there = jax.local_device_count()
    if there < K:
        fact = f"emulate_cpu({K}) comes too late: JAX has begun to compute and has {there}"
        way_out = "Call it before anything that makes an array or asks for devices, right after the imports."
        warnings.warn(f"{fact} CPU device{'s' if there > 1 else ''}. {way_out}", stacklevel=2)


def request_cpu_devices(K: int, exactly: bool = False) -> bool:
    """Asks JAX for K CPU devices; False where it has started already and cannot be asked any more.

    exactly: also where the environment (JAX_NUM_CPU_DEVICES) asks for more.
    """
    try:
        asked = getattr(jax.config, "jax_num_cpu_devices", 0)  # -1: not set yet
        if asked < K or (exactly and asked != K):
            jax.config.update("jax_num_cpu_devices", K)
    except RuntimeError:
        return False
    return True


def stage_devices(K: int) -> tuple[list[Any], str]:
    """Devices of the stages k = 1..K, and a sentence where they are fewer than K (else "").

    With fewer devices than stages neighbours share one, as evenly as can be.
    """
    if K < 1:
        raise BadInput(f"K={K} stages: a pipeline has at least one. Use K=1 (plain BP) or more.")
    request_cpu_devices(K)  # where it is too late for that, the number of devices tells
    try:
        found = jax.local_devices()
    except Exception as error:  # JAX raises several kinds when a platform asked for is not there
        raise BadInput(f"JAX finds no device: {first_line(error)} Set JAX_PLATFORMS=cpu, or leave it unset.") from error
    if len(found) >= K:
        return list(found[:K]), ""
    n, kind = len(found), found[0].platform.upper()
    shared = [found[k * n // K] for k in range(K)]
    faster = "" if kind == "CPU" else " Engine delay-line, if the method has it, is faster."
    return shared, (
        f"K={K} stages share {n} {kind} device{'s' if n > 1 else ''}: the numbers are those of {K} devices, the speed "
        f"is not (stages on one device run one after the other).{faster}"
    )


class Place:
    """Where a stage lies: one device. A method that spreads a stage over several brings a place of its own."""

    def __init__(self, device: Any):
        self.device = device  # where the host sends what it computes with
        self.devices = [device]
        self._put = jax_internals.Put(device)

    def weights(self, tree: Any) -> Any:
        """Starts to copy what does not grow with the batch to the stage."""
        return jax.tree.map(self._put, tree)

    def batch(self, tree: Any) -> Any:
        """Starts to copy arrays whose first axis is the batch to the stage."""
        return jax.tree.map(self._put, tree)
