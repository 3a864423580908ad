"""What is on this machine, and how much memory training takes on it. Runs in a process of its own."""

import os
import sys
from collections import Counter
from typing import Any

import jax
import numpy as np

from benchmarks.harness.live_bytes import Watch
from benchmarks.memory import programs
from fdg_jax.data.dataset import Dataset
from fdg_jax.engine import memory as counted
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.machine import compile_cache, facts
from fdg_jax.runs.options import Options
from fdg_jax.runs.run_files import version
from fdg_jax.training import setup

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "torch")


def devices() -> dict[str, Any]:
    """Devices, memory, versions and XLA flags; computes one product, so that a device that cannot is noticed."""
    found = jax.devices()
    product = jax.jit(lambda x: x @ x)(jax.numpy.full((256, 256), 0.5))
    stats = found[0].memory_stats() or {}
    return {
        "device": found[0].device_kind,
        "platform": found[0].platform,
        "devices": len(found),
        "memory_bytes": stats.get("bytes_limit"),
        "python": sys.version.split()[0],
        **{name.replace("-", "_"): version(name) for name in PACKAGES},
        "processor": facts.processor_name(),
        "cores": facts.usable_cores(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "computes": bool(product[0, 0] == 64.0),
    }


class Sampled(Watch):
    """Also looks at how many bytes the device has given away, where it tells."""

    def __init__(self, device: Any):
        super().__init__()
        self.device, self.in_use = device, 0
        self.at_first = self.now()

    def now(self) -> int | None:
        return (self.device.memory_stats() or {}).get("bytes_in_use")

    def look(self) -> None:
        super().look()  # waits until everything has been computed, so that no temporary buffer is counted below
        self.in_use = max(self.in_use, (self.now() or 0) - (self.at_first or 0))


def memory(model: str, K: int, batch_size: int, dataset: str) -> dict[str, Any]:
    """Bytes of a pipeline whose stages share one device: predicted, alive, and as the device counts them."""
    compile_cache.enable()
    setup.prepare_cpu()
    device = jax.devices()[0]
    watch = Sampled(device)
    options = Options(
        method="fdg", K=K, model=model, batch_size=batch_size, dataset=dataset, engine="pipeline", epochs=1
    )
    job = setup.prepare(options)
    engine, data = job.pipeline.engine, job.dataset
    assert isinstance(engine, HostEngine) and isinstance(data, Dataset)
    watch.at(engine)
    random = np.random.default_rng(0)
    for _ in range(4 * K + 2):
        row = random.integers(0, len(data.train_images), (1, batch_size), dtype=np.int32)
        job.pipeline.train(data.train_images, data.train_labels, row)
        watch.look()
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    predicted = counted.predict(engine)
    temporary = [each["temporary_bytes"] for each in programs(engine)]
    by_device = Counter[str]()
    for device_of, size in watch.most.items():
        by_device[str(device_of)] += size
    return {
        "predicted_bytes": sum(each.total for each in predicted),
        "live_bytes": sum(by_device.values()),
        "temporary_bytes": max((size for size in temporary if size is not None), default=None),
        "in_use_bytes": watch.in_use or None,
        "peak_bytes": peak,
        "model": model,
        "K": K,
        "batch_size": batch_size,
    }
