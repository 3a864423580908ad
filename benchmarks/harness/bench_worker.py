"""One side of a comparison in a process of its own. It trains on request, and sleeps in between."""

import gc
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks.harness import hooks, live_bytes, operation_times, serving, side_specs
from fdg_jax.checks.plan import of_config
from fdg_jax.config import Config
from fdg_jax.data.dataset import Dataset
from fdg_jax.engine import host_engine, memory
from fdg_jax.errors import BadInput
from fdg_jax.layers import convolution
from fdg_jax.machine import compile_cache, facts, huge_pages
from fdg_jax.options.common import own_defaults
from fdg_jax.stages.stage import Stage
from fdg_jax.training import job as jobs


class Trainer:
    """The training command's own pipeline on synthetic images, with the options of the side."""

    peers = jobs.ALONE  # the processes that train together
    prepare = staticmethod(compile_cache.enable)  # prepares its process, as in the training command

    def __init__(self, side: side_specs.Side):
        same = ("method", "K", "engine", "split", "model", "batch_size", "dtype")
        # The rate keeps the loss finite; the speed does not depend on it.
        rate = {"learning_rate": 0.01, **own_defaults(side.training.get("optimizer", "sgd"))}
        about = {name: getattr(side, name) for name in same} | {"dataset": "synthetic", "epochs": 1}
        options = Config(**about, **rate, **side.options, **side.training)
        of_config(options, frozenset(side.options) | frozenset(side.training))
        if side.device == "gpu" and jax.default_backend() == "cpu":
            raise BadInput("JAX finds no accelerator here. Use --device cpu, or install requirements-cuda12.txt.")
        self.prepare_cpu(side)
        convolution.PLAIN = side.layers == "plain"  # for the whole process: programs are traced at first use
        with mock.patch.object(Stage, "packs", side.packing == "on"):
            self.job = jobs.prepare(options, peers=self.peers)
        assert isinstance(self.job.dataset, Dataset)  # synthetic images, in memory
        self.data = self.job.dataset
        self.random, self.device, self.asked_before = np.random.default_rng(0), side.device, False

    def prepare_cpu(self, side: side_specs.Side) -> None:
        """Sets threads and CPU devices before JAX starts, like the training command."""
        jobs.prepare_cpu()

    @property
    def engine(self) -> host_engine.HostEngine:
        """The engine, which must be the host engine."""
        engine = self.job.pipeline.engine
        assert isinstance(engine, host_engine.HostEngine)
        return engine

    def run(self, batches: int) -> dict[str, float]:
        """Trains on so many batches and waits until everything is computed. If a dispatch takes many batches (the delay
        line on an accelerator), only whole dispatches are made, so that one program is compiled. The answer has the
        number of trained batches as `batches`.
        """
        data, pipeline = self.data, self.job.pipeline
        window = self.job.options.window or 1
        dispatches, each = (-(-batches // window), window) if window > 1 else (1, batches)
        size = (dispatches, each, self.job.options.batch_size)
        indices = self.random.integers(0, len(data.train_images), size, dtype=np.int32)

        def train() -> float:
            for rows in indices:
                pipeline.train(data.train_images, data.train_labels, rows)
            pipeline.wait()
            losses = pipeline.losses(wait=True)
            return losses[-1].loss if losses else 0.0  # no loss yet while the pipeline fills

        return {**serving.clocked(train), "batches": dispatches * each}

    def memory(self, batches: int) -> dict[str, Any]:
        """Trains on so many batches and reports the live arrays afterwards.

        resident_bytes is the memory of the process; files and threads are numbers of open files and of threads. All
        three are None if the system does not report them.
        """
        result = self.run(batches)
        gc.collect()
        arrays, resident, here = jax.live_arrays(), of_status("VmRSS"), Path("/proc/self/fd")
        of_arrays = {"arrays": len(arrays), "array_bytes": sum(array.nbytes for array in arrays)}
        files = len(os.listdir(here)) if here.is_dir() else None
        of_process = {"resident_bytes": resident and 1024 * resident, "files": files, "threads": of_status("Threads")}
        return {**result, **of_arrays, **of_process}

    def held(self, batches: int) -> dict[str, Any]:
        """Trains on so many batches (two updates at least) and counts the bytes of arrays between two operations.

        Returns: the predicted and the measured maximum; {} if there is no prediction.
        """
        engine = self.job.pipeline.engine
        if not memory.predict(engine) or not isinstance(engine, host_engine.HostEngine):
            return {}
        watch = live_bytes.Watch(of_before=True)
        with hooks.around(engine, watch.hook(engine)):
            for _ in range(max(batches, 2 * self.job.options.accumulate)):
                self.run(1)
                watch.look()
        return {"predicted_bytes": live_bytes.predicted(engine), "measured_bytes": watch.most.total()}

    def operations(self, batches: int) -> dict[str, Any]:
        """Trains on so many batches (whole updates), one operation at a time. The first batch or update is not counted.

        Returns: the time of each operation (benchmarks.harness.operation_times), and the busy time of the process; {}
            if one program does many operations.
        """
        busy = time.process_time()
        data, engine, options = self.data, self.job.pipeline.engine, self.job.options
        if not isinstance(engine, host_engine.HostEngine):
            return {}
        if not self.asked_before:
            self.asked_before = True
            self.operations(1)
        batches = -(-batches // options.accumulate) * options.accumulate
        indices = self.random.integers(0, len(data.train_images), (1 + batches, options.batch_size), dtype=np.int32)
        cores = facts.usable_cores() or 1 if self.device == "cpu" else 1
        result = operation_times.measure(engine, data.train_images, data.train_labels, indices, cores)
        return {**result, "busy_seconds": time.process_time() - busy}

    def about(self) -> dict[str, Any]:
        pipeline, parts = self.job.pipeline, self.job.partition
        found = {"cuts": list(parts.cuts), "blocks": len(parts.blocks), "parameters": pipeline.parameter_count}
        found |= {"staleness": pipeline.staleness, "device_kind": jax.devices()[0].device_kind}
        return {**found, **software()}


def software() -> dict[str, Any]:
    """The versions and settings of this process."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {"python": sys.version.split()[0], "jax": jax.__version__, "xla_flags": flags, "huge_pages": huge_pages.on()}


def of_status(name: str) -> int | None:
    """A number that Linux reports of this process, such as VmRSS in KiB."""
    file = Path("/proc/self/status")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
