"""The engines against each other and against plain JAX, on this device. Runs in a process of its own."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import fdg_jax
from experiments.gpu import oracle
from fdg_jax import models, split
from fdg_jax.api import ENGINES
from fdg_jax.data.sets import synthetic
from fdg_jax.engine.scan_engine import ScanEngine
from fdg_jax.machine import compile_cache
from fdg_jax.methods.fdg import fdg
from fdg_jax.recipe import paper_sgd
from fdg_jax.training.setup import cross_entropy

# Of the weights' norm. The engines differentiate stage by stage, the oracle the whole network in one program: sums are
# taken in another order, and a GPU may have other kernels for it (Winograd, other tiles). In full float32, not in TF32,
# a gradient is off by 1e-6 to 1e-5 of itself for that, and ten steps at this small learning rate are about 1e-3 of the
# weights. Where rounding turns the sign of what a ReLU gets, one image's gradient jumps. On CPUs 1e-8 was seen without
# such a jump, and 2e-6 with one. Gradients that are used one update too soon make 2e-4 there; if they do not make
# `WRONG` times the bound here as well, the check tells nothing and fails.
BOUND, WRONG = 2e-5, 5.0
LEARNING_RATE = 0.01
BETA = 0.5
Tree = Any


def engines(model: str, K: int, steps: int, batch_size: int) -> dict[str, Any]:
    """Trains `steps` batches with every engine and with the oracle; how far the weights are apart after the drain."""
    compile_cache.enable()
    device, data = jax.devices()[0], synthetic.load()
    blocks = models.blocks(model, data.classes)
    cuts = split.parse("even", model, K, len(blocks))
    modules, n = split.stages(blocks, cuts), steps * batch_size
    x = ((data.train_images[:n] / np.float32(255)) - np.float32(0.5)) * 4
    images, labels = np.asarray(x, np.float32), data.train_labels[:n]
    indices = np.arange(n, dtype=np.int32).reshape(steps, batch_size)
    batches = [(images[row], labels[row]) for row in indices]
    whole = split.init_whole(blocks, jax.random.key(0), jax.ShapeDtypeStruct(batches[0][0].shape, np.float32))
    start = jax.device_get(split.split_variables(whole, cuts))
    ENGINES["scan"] = ScanEngine  # what the delay line is on a GPU
    found: dict[str, Tree] = {}
    losses: dict[str, list[float]] = {}
    for name in ["pipeline", "scan", *(["delay-line"] if device.platform == "cpu" else [])]:
        pipeline = fdg_jax.Pipeline(
            modules, cross_entropy, paper_sgd(LEARNING_RATE), beta=BETA, devices=[device] * K, engine=name
        ).init(jax.random.key(0), batches[0], variables=start)
        pipeline.train(images, labels, indices)
        pipeline.drain()
        found[name] = [each["params"] for each in pipeline.params]
        losses[name] = [metrics.loss for metrics in pipeline.losses(wait=True)]
    delays = fdg(K).staleness
    truth, losses["oracle"] = oracle.trained(
        modules, cross_entropy, paper_sgd(LEARNING_RATE), start, batches, delays, BETA
    )
    sooner = [max(0, delay - 1) for delay in delays]
    wrong, _ = oracle.trained(modules, cross_entropy, paper_sgd(LEARNING_RATE), start, batches, sooner, BETA)
    apart = {name: distance(params, truth) for name, params in found.items()}
    apart_losses = {name: far(values, losses["oracle"]) for name, values in losses.items() if name != "oracle"}
    return {
        "from_oracle": apart,
        "losses_from_oracle": apart_losses,
        "between_engines": distance(found["pipeline"], found["scan"]),
        "one_update_sooner": distance(wrong, truth),
        "bound": BOUND,
        "needed_ratio": WRONG,
        "model": model,
        "K": K,
        "steps": steps,
        "batch_size": batch_size,
    }


def distance(one: Tree, other: Tree) -> float:
    """The largest over the stages of |one - other| / |other|, Euclidean norms of all parameters."""
    return max(relative(jax.device_get(a), jax.device_get(b)) for a, b in zip(one, other, strict=True))


def relative(one: Tree, other: Tree) -> float:
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    apart = sum(float(np.sum(np.square(np.float64(a) - np.float64(b)))) for a, b in pairs)
    size = sum(float(np.sum(np.square(np.float64(b)))) for _, b in pairs)
    return math.sqrt(apart / size)


def far(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
