"""The checks that start JAX on the device, each in its own process: `python -m experiments.gpu.on_device NAME JSON`.

The last line that such a process prints is its answer, as JSON.
"""

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

import fdg_jax
from benchmarks.harness.bench_worker import Trainer
from benchmarks.harness.hooks import around
from benchmarks.harness.live_bytes import Watch
from benchmarks.harness.side_specs import Side
from fdg_jax import models, split
from fdg_jax.config import Config
from fdg_jax.data.sets import synthetic
from fdg_jax.engine import memory as counted
from fdg_jax.engine.host_engine import HostEngine
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.engine.seeds import Seeds
from fdg_jax.machine import compile_cache, facts
from fdg_jax.methods.fdg import fdg
from fdg_jax.recipe import paper_sgd
from fdg_jax.runs.run_files import version
from fdg_jax.training import job as jobs
from fdg_jax.training.job import cross_entropy

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "torch")
# Relative to the weights' norm. The engines differentiate stage by stage, the oracle the whole network in one program:
# sums are taken in another order, and a GPU may choose other kernels (Winograd, other tiles). In full float32 (not
# TF32), this changes a gradient by 1e-6 to 1e-5 of its size, and ten steps at this small learning rate move the weights
# by about 1e-3. If rounding changes the sign of a ReLU's input, one image's gradient jumps. On CPUs the difference was
# 1e-8 without such a jump, and 2e-6 with one. On CPUs, using gradients one update too soon made a difference of 2e-4.
# If that fault makes less than `WRONG` times the bound on the device, the check could not detect it, so the check
# fails.
BOUND, WRONG = 2e-5, 5.0
LEARNING_RATE, BETA = 0.01, 0.5
Tree = Any


def devices() -> dict[str, Any]:
    """Devices, memory, versions and XLA flags. Computes one product, to notice a device that cannot compute."""
    found = jax.devices()
    product = jax.jit(lambda x: x @ x)(jax.numpy.full((256, 256), 0.5))
    return {
        "device": found[0].device_kind,
        "platform": found[0].platform,
        "devices": len(found),
        "memory_bytes": (found[0].memory_stats() or {}).get("bytes_limit"),
        "python": sys.version.split()[0],
        **{name.replace("-", "_"): version(name) for name in PACKAGES},
        "processor": facts.processor_name(),
        "cores": facts.usable_cores(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "computes": bool(product[0, 0] == 64.0),
    }


def engines(model: str, K: int, steps: int, batch_size: int) -> dict[str, Any]:
    """Trains `steps` batches with every engine and with the oracle. Returns the distances of the weights after the
    drain."""
    compile_cache.enable()
    device, data = jax.devices()[0], synthetic.load()
    blocks, n = models.blocks(model, data.classes), steps * batch_size
    cuts = split.parse("even", model, K, len(blocks))
    modules, optimizer = split.stages(blocks, cuts), paper_sgd(LEARNING_RATE)
    images = np.asarray(((data.train_images[:n] / np.float32(255)) - np.float32(0.5)) * 4, np.float32)
    labels, indices = data.train_labels[:n], np.arange(n, dtype=np.int32).reshape(steps, batch_size)
    batches = [(images[row], labels[row]) for row in indices]
    whole = split.init_whole(blocks, jax.random.key(0), jax.ShapeDtypeStruct(batches[0][0].shape, np.float32))
    start = jax.device_get(split.split_variables(whole, cuts))
    found: dict[str, Tree] = {}
    losses: dict[str, list[float]] = {}
    for name in ["pipeline", "scan", *(["delay-line"] if device.platform == "cpu" else [])]:
        pipeline = fdg_jax.Pipeline(modules, cross_entropy, optimizer, beta=BETA, devices=[device] * K, engine=name)
        pipeline.init(jax.random.key(0), batches[0], variables=start)
        pipeline.train(images, labels, indices)
        pipeline.drain()
        found[name] = [each["params"] for each in pipeline.params]
        losses[name] = [metrics.loss for metrics in pipeline.losses(wait=True)]
    delays = fdg(K).staleness
    truth, right = trained(modules, optimizer, start, batches, delays)
    wrong, _ = trained(modules, optimizer, start, batches, [max(0, delay - 1) for delay in delays])
    return {
        "from_oracle": {name: distance(params, truth) for name, params in found.items()},
        "losses_from_oracle": {
            name: max(abs(a - b) for a, b in zip(values, right, strict=True)) for name, values in losses.items()
        },
        "between_engines": distance(found["pipeline"], found["scan"]),
        "one_update_sooner": distance(wrong, truth),
        "bound": BOUND,
        "needed_ratio": WRONG,
        "model": model, "K": K, "steps": steps, "batch_size": batch_size,
    }


def trained(
    modules: Sequence[Any], optimizer: optax.GradientTransformation, variables: Sequence[Tree],
    batches: Sequence[tuple[Tree, Tree]], delays: Sequence[int],
) -> tuple[list[Tree], list[float]]:  # fmt: skip
    """The oracle: training with delayed gradients in plain JAX, without the engines. It back-propagates through the
    whole network, and keeps for each stage a list of old gradients, which it multiplies by beta^(K-k).

    Arguments:
        modules: K Flax modules, called with (x, train).
        variables: {"params": ..., "batch_stats": ...} of each module.
        delays: how many updates a gradient of stage k = 1..K waits.

    Returns: (parameters per stage after all gradients were used, losses).
    """
    params = [each["params"] for each in variables]
    statistics = [{name: value for name, value in each.items() if name != "params"} for each in variables]
    states, waiting, losses = [optimizer.init(each) for each in params], [[] for _ in modules], []

    def objective(params, statistics, x, labels):
        changed = []
        for module, own, kept in zip(modules, params, statistics, strict=True):
            x, new = module.apply({"params": own, **kept}, x, True, mutable=list(kept))
            changed.append(dict(new))
        return cross_entropy(x, labels), changed

    def update(params, state, gradient, factor):
        changes, state = optimizer.update(jax.tree.map(lambda g: factor * g, gradient), state, params)
        return optax.apply_updates(params, changes), state

    differentiate, update = jax.jit(jax.value_and_grad(objective, has_aux=True)), jax.jit(update)

    def use(still_wait: Sequence[int]) -> None:
        for k, delay in enumerate(still_wait):
            while len(waiting[k]) > delay:
                factor = BETA ** (len(modules) - 1 - k)
                params[k], states[k] = update(params[k], states[k], waiting[k].pop(0), factor)

    for x, labels in batches:
        (value, statistics), gradients = differentiate(params, statistics, x, labels)
        losses.append(float(value))
        for k, gradient in enumerate(gradients):
            waiting[k].append(gradient)
        use(delays)
    use([0] * len(modules))
    return params, losses


def distance(one: Tree, other: Tree) -> float:
    """The maximum over the stages of |one - other| / |other|, in Euclidean norms of all parameters."""

    def norm(leaves: Sequence[Any]) -> float:
        return math.sqrt(sum(float(np.sum(np.square(np.float64(leaf)))) for leaf in leaves))

    def relative(a: Tree, b: Tree) -> float:
        a, b = (jax.tree.leaves(jax.device_get(each)) for each in (a, b))
        return norm([np.float64(x) - np.float64(y) for x, y in zip(a, b, strict=True)]) / norm(b)

    return max(relative(a, b) for a, b in zip(one, other, strict=True))


class Sampled(Watch):
    """A watch that also reads the device's own count of allocated bytes, if there is one."""

    def __init__(self, device: Any):
        super().__init__()
        self.device, self.in_use = device, 0
        self.at_first = self.told("bytes_in_use") or 0

    def told(self, name: str) -> int | None:
        return (self.device.memory_stats() or {}).get(name)

    def look(self) -> None:
        super().look()  # waits until everything is computed, so that no temporary buffer is counted below
        self.in_use = max(self.in_use, (self.told("bytes_in_use") or 0) - self.at_first)


def memory(model: str, K: int, batch_size: int) -> dict[str, Any]:
    """Bytes of a pipeline whose stages share one device: the prediction, the bytes of live arrays, and the device's own
    count."""
    compile_cache.enable()
    watch = Sampled(jax.devices()[0])
    trainer = Trainer(Side("fdg", "fdg", K, 1, model, batch_size))
    engine = trainer.job.pipeline.engine
    assert isinstance(engine, HostEngine)
    with around(engine, watch.hook(engine)):
        for _ in range(4 * K + 2):
            trainer.run(1)
            watch.look()
    return {
        "predicted_bytes": sum(each.total for each in counted.predict(engine)),
        "live_bytes": watch.most.total(),
        "in_use_bytes": watch.in_use or None,
        "model": model, "K": K, "batch_size": batch_size,
    }


def seeds(model: str, batch_size: int, numbers: Sequence[int], windows: int, seconds: float) -> tuple[Any, int | None]:
    """Measures several seeds in one program, by number of seeds. The numbers of seeds take turns.

    Returns: the total images/s by number of seeds, one value per window of at least `seconds`; and the device's largest
        memory in bytes, mostly that of the largest number of seeds, None if it is unknown."""
    data, sides = synthetic.load(), dict[int, Any]()
    options = Config(
        dataset="synthetic", model=model, K=2, beta=0.2, engine="scan", epochs=1, batch_size=batch_size,
        learning_rate=LEARNING_RATE,
    )  # fmt: skip
    jobs.prepare_cpu()
    for n in numbers:
        first = jobs.built(options, data, jobs.ALONE)
        made = [first, *(jobs.of_seed(first, seed) for seed in range(1, n))]
        engines = [each for job in made if isinstance(each := job.pipeline.engine, ScanEngine)]
        together = Seeds(engines, range(n), data.train_transform)
        size = n, first.options.window or 1, batch_size
        rows = np.random.default_rng(0).integers(0, len(data.train_images), size, dtype=np.int32)

        def train(made=made, together=together, rows=rows) -> None:
            for job, own in zip(made, rows, strict=True):
                job.pipeline.train(data.train_images, data.train_labels, own)
            jax.block_until_ready(together.run)

        train()  # compiles
        sides[n] = train, rows.size
    speeds: dict[int, list[float]] = {n: [] for n in numbers}
    for _ in range(windows):
        for n, (train, images) in sides.items():
            begun, trained = time.monotonic(), 0
            while time.monotonic() - begun < seconds:
                train()
                trained += images
            speeds[n].append(trained / (time.monotonic() - begun))
    return speeds, (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


if __name__ == "__main__":
    answer = {"devices": devices, "engines": engines, "memory": memory, "seeds": seeds}[sys.argv[1]]
    print(json.dumps(answer(**json.loads(sys.argv[2]))))
