"""How long each block of a network takes on this device: what `--split measured` and `Pipeline(split=)` balance.

A block's forward pass, backward pass and update are three programs, as in a stage. Blocks that are alike are measured
once, and all kinds take turns, so that what disturbs the machine meets them alike; a block's time is the median of its
turns. On a CPU it is the processor time of this process, which neither other processes nor other stages lengthen; where
several cores work on one block, threads that wait for work are counted too. Augmentation (stage 1) and the loss
(stage K) are left out.

Measured times are kept in the user's cache directory (`kept`), for exactly these blocks, batches, device and versions.
"""

import hashlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from fdg_jax import layers, recipe
from fdg_jax.layers import convolution
from fdg_jax.machine import facts, huge_pages, kept_times, programs
from fdg_jax.machine.stderr import Progress
from fdg_jax.stage import functions, shapes

ROUNDS, WHAT = 5, "block times"

Step = Callable[[], float]


def seconds(blocks: Sequence[nn.Module], x: jax.ShapeDtypeStruct, device: Any) -> list[float]:
    """Seconds of each block for a batch x [b, ...] of block 0: known from before, or measured now and kept."""
    found = known(blocks, x, device)
    if found is None:
        found = measure(blocks, x, device)
        kept_times.save(WHAT, conditions(blocks, x, device), found)
    return found


def known(blocks: Sequence[nn.Module], x: jax.ShapeDtypeStruct, device: Any) -> list[float] | None:
    """The seconds measured before under the same conditions; None where there are none."""
    return kept_times.load(WHAT, conditions(blocks, x, device), len(blocks))


def measure(blocks: Sequence[nn.Module], x: jax.ShapeDtypeStruct, device: Any, rounds: int = ROUNDS) -> list[float]:
    """Seconds of each block, measured now."""
    kinds: dict[Any, tuple[Step, Any]] = {}
    of_block = []
    progress = Progress(len(blocks), "blocks", f"measuring block times on {device.platform}:{device.id}, once")
    for number, block in enumerate(blocks):
        kind = (number == 0, repr(block), shapes.describe(x))
        if kind not in kinds:
            kinds[kind] = warm(block, x, device, first=number == 0)
        of_block.append(kind)
        x = kinds[kind][1]
        progress.advance(1)
    taken: dict[Any, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, (step, _) in kinds.items():
            taken[kind].append(step())
    return [statistics.median(taken[kind]) for kind in of_block]


def warm(block: nn.Module, x: Any, device: Any, first: bool) -> tuple[Step, Any]:
    """(a function that runs the block once and says how long that took, what the block gives).

    first: it is block 0, whose input needs no gradient.
    """
    clock = time.process_time if device.platform == "cpu" else time.perf_counter
    random = np.random.default_rng(0)

    def numbers(shape: Any) -> jax.Array:  # any will do, and these compile nothing; integers become 0
        return jax.device_put(random.uniform(0.01, 0.1, shape.shape).astype(shape.dtype), device)

    seen = shapes.trace_module(block, functions.DEFAULT_COMPUTE, x)
    made = functions.functions(block, recipe.paper_sgd(0.1), compute=seen.compute)
    params, extra = shapes.state_shapes(seen.variables, seen.draws)
    momentum = jax.eval_shape(recipe.paper_sgd(0.1).init, params)
    batch, params, extra, *state = jax.tree.map(numbers, (x, params, extra, momentum))

    def gradients(closure, params, x, dy):
        grads, dx = made.backward(closure, params, x, dy)
        return grads, None if first else dx

    forward, update = programs.jit(made.forward, device.platform), jax.jit(made.update, donate_argnums=1)
    backward = programs.jit(gradients, device.platform)

    def step() -> float:
        jax.block_until_ready((batch, params, state))
        start = clock()
        messages, changed, closure = forward(params, extra, batch, None)
        grads, dx = backward(closure, params, batch, messages["x"])
        updated, state[0] = update(params, state[0], grads)
        jax.block_until_ready((changed, dx, updated, state))
        return clock() - start

    step()
    return step, jax.eval_shape(made.forward, params, extra, batch)[0]["x"]


def conditions(blocks: Sequence[nn.Module], x: jax.ShapeDtypeStruct, device: Any) -> dict[str, Any]:
    """All that a measurement depends on, as it stands in its file."""
    where = {"processor": facts.processor_name(), "cores": facts.usable_cores()}
    where |= {"glibc": os.environ.get(huge_pages.TUNABLES, "")}  # page faults count as time
    modules = [convolution, layers, functions, recipe, programs]
    modules += [sys.modules[type(block).__module__] for block in blocks]
    named = [getattr(module, "__file__", None) for module in modules]  # what is typed at a prompt is in no file
    files = {Path(__file__), *(Path(name) for name in named if name)}
    code = hashlib.sha256(b"".join(sorted(file.read_bytes() for file in files)))
    return {
        "blocks": [repr(block) for block in blocks],
        "input": shapes.describe(x),
        "device": device.device_kind,
        **(where if device.platform == "cpu" else {}),
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "flax")},
        "code": code.hexdigest(),
        "rounds": ROUNDS,
    }
