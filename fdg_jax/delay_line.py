"""The whole pipeline on one device, at BP's speed.

Index everything by batch instead of by tick: when batch b passes stage k, the stage's weights contain exactly the
gradients of the batches up to b-1-D, D being the stage's staleness. So a pipeline with stashed weights *is* BP on
each batch with a delay line of length D on each stage's gradient before its optimizer. It holds for FDG and for
every method whose gradients are taken at the weights of the forward pass; not for `current` weights.

This is that identity as pure functions, for accelerators: many batches in one dispatch under `lax.scan`. On a CPU the
delay-line engine is the host loop with the schedule of BP and delayed stages (fdg_jax.host_engine says why).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdg_jax.stage import Functions, StageState

Tree = Any


class Line(NamedTuple):
    """Gradients under way: a ring of D slots, and in `version` the weight version each was taken at."""

    grads: Tree  # leaves [D, ...]
    version: jax.Array  # [D] int32


class DelayState(NamedTuple):
    """Everything a run is: batches seen in all and since the lines were empty; per stage its state, line, counters."""

    entered: jax.Array  # int32
    batch: jax.Array  # int32
    stages: tuple[StageState, ...]
    lines: tuple[Line, ...]
    updates: tuple[jax.Array, ...]  # int32 each
    staleness: tuple[jax.Array, ...]  # int32 each, the largest measured


def start(stages: Sequence[StageState], delays: Sequence[int]) -> DelayState:
    """Empty delay lines behind freshly initialised stages."""
    zero = jnp.zeros((), jnp.int32)
    lines = tuple(empty_line(s.params, D) for s, D in zip(stages, delays, strict=True))
    counters = (zero,) * len(stages)
    return DelayState(zero, zero, tuple(stages), lines, counters, counters)


def empty_line(params: Tree, D: int) -> Line:
    grads = jax.tree.map(lambda p: jnp.zeros((D, *p.shape), p.dtype), params)
    return Line(grads, jnp.zeros((D,), jnp.int32))


def where(condition: jax.Array, new: Tree, old: Tree) -> Tree:
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


def read(line: Line, slot: jax.Array) -> tuple[Tree, jax.Array]:
    """(grads, version) in a slot of the ring."""
    return jax.tree.map(lambda ring: jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False), tuple(line))


def write(line: Line, slot: jax.Array, grads: Tree, version: jax.Array) -> Line:
    put = jax.lax.dynamic_update_index_in_dim
    return Line(
        jax.tree.map(lambda ring, g: put(ring, g, slot, 0), line.grads, grads), put(line.version, version, slot, 0)
    )


class Held(NamedTuple):
    """Between a batch's forward and backward pass: per stage its closure, its input and its next collections."""

    closures: tuple[Any, ...]
    inputs: tuple[Tree, ...]
    extras: tuple[dict[str, Tree], ...]


def forward(functions: Sequence[Functions], stages: Sequence[StageState], x: Tree, labels: Tree):
    """(loss, what the backward pass needs) of one batch through all stages."""
    held, K = [], len(functions)
    for k, (f, s) in enumerate(zip(functions, stages, strict=True), 1):
        y, extra, closure = f.forward(s.params, s.extra, x, labels if k == K else None)
        held.append((closure, x, extra))
        x = y
    return x, Held(*zip(*held, strict=True))


def backward(functions: Sequence[Functions], delays: Sequence[int], run: DelayState, held: Held) -> DelayState:
    """One batch of BP, each gradient sent through its line; the state after the updates that fall due.

    Stage k applies the gradient of batch b-D; for b <= D nothing happens to it, no weight decay either (the fill).
    """
    batch, dy, grads = run.batch + 1, None, []
    for f, s, closure, x in reversed(list(zip(functions, run.stages, held.closures, held.inputs, strict=True))):
        g, dy = f.backward(closure, s.params, x, dy)
        grads.append(g)
    stages, lines, updates, staleness = [], [], [], []
    for i, (f, D, s, g) in enumerate(zip(functions, delays, run.stages, reversed(grads), strict=True)):
        line, made, version = run.lines[i], run.updates[i], run.updates[i]
        if D:
            slot = (batch - 1) % D
            (late, late_version), line = read(line, slot), write(line, slot, g, version)
            g, version = late, late_version
        due = batch > D
        new = f.update(s.params, s.opt_state, g)
        params, opt_state = where(due, new, (s.params, s.opt_state)) if D else new
        stages.append(StageState(params, held.extras[i], opt_state))
        lines.append(line)
        staleness.append(jnp.where(due, jnp.maximum(run.staleness[i], made - version), run.staleness[i]))
        updates.append(made + due.astype(jnp.int32))
    return DelayState(run.entered + 1, batch, tuple(stages), tuple(lines), tuple(updates), tuple(staleness))


def drain(functions: Sequence[Functions], delays: Sequence[int], state: DelayState) -> DelayState:
    """Applies the gradients still in the lines, oldest first; the lines are then empty."""
    stages, updates, staleness = [], [], []
    for i, (f, D, s) in enumerate(zip(functions, delays, state.stages, strict=True)):
        params, opt_state, made, worst = s.params, s.opt_state, state.updates[i], state.staleness[i]
        for late in range(1, D + 1):
            of = state.batch + late - D  # the batch whose gradient is next; below 1 if the run was that short
            g, version = read(state.lines[i], (of - 1) % D)
            new = f.update(params, opt_state, g)
            params, opt_state = where(of >= 1, new, (params, opt_state))
            worst = jnp.where(of >= 1, jnp.maximum(worst, made - version), worst)
            made = made + (of >= 1).astype(jnp.int32)
        stages.append(StageState(params, s.extra, opt_state))
        updates.append(made)
        staleness.append(worst)
    zero = jnp.zeros((), jnp.int32)
    return DelayState(state.entered, zero, tuple(stages), state.lines, tuple(updates), tuple(staleness))
