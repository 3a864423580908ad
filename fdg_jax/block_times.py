"""Measures how long each block of a network takes on this device. `--split measured` balances these times.

A block's forward pass, backward pass and update are three programs, as in a stage. Equal blocks are measured once.
Different blocks take turns, so that a disturbance of the machine affects all of them; a block's time is the median of
its turns. On a CPU, time is the processor time of this process, so other processes do not lengthen it. If several
cores work on one block, the time of threads that wait for work is included. Augmentation (stage 1) and the loss (stage
K) are not measured.

Measured times are kept in the user's cache directory, for exactly these programs, device and versions.
"""

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from fdg_jax import recipe
from fdg_jax.machine import compile_cache, facts, huge_pages, programs
from fdg_jax.machine.output import Progress
from fdg_jax.split import of_each_kind
from fdg_jax.stages import functions
from fdg_jax.stages.shapes import describe
from fdg_jax.stages.tracing import trace_module
from fdg_jax.stages.update import UpdateRule

ROUNDS, WHAT = 5, "block times"

Step = Callable[[], float]


def seconds(blocks: Sequence[nn.Module], x: jax.ShapeDtypeStruct, device: Any) -> list[float]:
    """Seconds of each block for a batch x [b, ...], the input of block 0. Reads them from the cache, or measures and
    stores them."""
    case = conditions(blocks, x, device)
    found = compile_cache.load_times(WHAT, case, len(blocks))
    if found is None:
        found = measure(blocks, x, device)
        compile_cache.save_times(WHAT, case, found)
    return found


def measure(blocks: Sequence[nn.Module], x: jax.ShapeDtypeStruct, device: Any, rounds: int = ROUNDS) -> list[float]:
    """Measures the seconds of each block, without the cache."""
    progress = Progress(len(blocks), "blocks", f"measuring block times on {device.platform}:{device.id}, once")
    steps = []
    for step in of_each_kind(blocks, x, lambda block, x, first: warm(block, x, device, first)):
        steps.append(step)
        progress.advance(1)
    taken: dict[Step, list[float]] = {step: [] for step in steps}
    for _ in range(rounds):
        for step, times in taken.items():
            times.append(step())
    return [statistics.median(taken[step]) for step in steps]


class Programs(NamedTuple):
    """The programs that a stage runs for a block: forward(params, extra, x, None), backward(closure, params, x, dy) and
    update(params, momentum, grads). The other fields are the shapes of their arguments and of the block's output y."""

    forward: Callable
    backward: Callable
    update: Callable
    params: Any
    extra: Any
    momentum: Any
    closure: Any
    y: Any


def programs_of(block: nn.Module, x: Any, first: bool) -> Programs:
    """The `Programs` of a block. first: whether it is block 0, whose input needs no gradient."""
    seen = trace_module(block, functions.DEFAULT_COMPUTE, x)
    made, rule = functions.functions(block, compute=seen.compute), UpdateRule(recipe.paper_sgd(0.1))
    momentum = jax.eval_shape(rule.optimizer.init, seen.params)
    messages, _, closure = jax.eval_shape(made.forward, seen.params, seen.extra, x, None)

    def gradients(closure, params, x, dy):
        grads, dx = made.backward(closure, params, x, dy)
        return grads, None if first else dx

    shapes = seen.params, seen.extra, momentum, closure, messages["x"]
    return Programs(made.forward, gradients, lambda *state: rule.new_weights(*state)[:2], *shapes)


def warm(block: nn.Module, x: Any, device: Any, first: bool) -> tuple[Step, Any]:
    """Compiles a block's programs. first: whether it is block 0, whose input needs no gradient.

    Returns: (a function that runs the block once and returns the seconds, the shape of the block's output).
    """
    clock = time.process_time if device.platform == "cpu" else time.perf_counter
    random = np.random.default_rng(0)

    def numbers(shape: Any) -> jax.Array:  # any values will do; NumPy compiles nothing; integers become 0
        return jax.device_put(random.uniform(0.01, 0.1, shape.shape).astype(shape.dtype), device)

    found = programs_of(block, x, first)
    batch, params, extra, *state = jax.tree.map(numbers, (x, found.params, found.extra, found.momentum))
    forward, update = programs.jit(found.forward), programs.jit(found.update, donate_argnums=1)
    backward = programs.jit(found.backward)

    def step() -> float:
        jax.block_until_ready((batch, params, state))
        start = clock()
        messages, changed, closure = forward(params, extra, batch, None)
        grads, dx = backward(closure, params, batch, messages["x"])
        updated, state[0] = update(params, state[0], grads)
        jax.block_until_ready((changed, dx, updated, state))
        return clock() - start

    step()
    return step, found.y


def program_texts(blocks: Sequence[nn.Module], x: Any) -> list[str]:
    """A hash of each block's programs as XLA gets them. It changes when a block's computation changes."""

    def find(block: nn.Module, x: Any, first: bool) -> tuple[str, Any]:
        found = programs_of(block, x, first)
        forward = programs.jit(found.forward).lower(found.params, found.extra, x, None)
        backward = programs.jit(found.backward).lower(found.closure, found.params, x, found.y)
        update = programs.jit(found.update).lower(found.params, found.momentum, found.params)
        texts = "".join(program.as_text() for program in (forward, backward, update))
        return hashlib.sha256(texts.encode()).hexdigest(), found.y

    return list(of_each_kind(blocks, x, find))


def conditions(blocks: Sequence[nn.Module], x: jax.ShapeDtypeStruct, device: Any) -> dict[str, Any]:
    """Everything that a measurement depends on. It is stored in the cache beside the times."""
    where = {"processor": facts.processor_name(), "cores": facts.usable_cores()}
    where |= {"glibc": os.environ.get(huge_pages.TUNABLES, "")}  # page faults count as time
    return {
        "blocks": program_texts(blocks, x),
        "input": describe(x),
        "device": device.device_kind,
        **(where if device.platform == "cpu" else {}),
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "flax")},
        "code": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),  # this file measures
        "rounds": ROUNDS,
    }
