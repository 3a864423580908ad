"""The whole pipeline on one device, at BP's speed.

Index everything by batch instead of by tick: when batch b passes stage k, the stage's weights contain exactly the
gradients of the batches up to b-1-D, D being the schedule's `behind`. So a pipeline with stashed weights *is* BP on
each batch with a delay line of length D on each stage's gradient before its optimizer. It holds for FDG and for
every method whose gradients are taken at the weights of the forward pass; not for `current` weights.

This is that identity as pure functions, for accelerators: many batches in one dispatch under `lax.scan`. On a CPU the
delay-line engine is the host loop with the schedule of BP and delayed stages (fdg_jax.engine.host_engine says why).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdg_jax.corrections.interface import Correction
from fdg_jax.stage.correcting import guarded
from fdg_jax.stage.functions import Functions, StageState
from fdg_jax.stage.nonfinite import where

Tree = Any


class Line(NamedTuple):
    """Gradients under way: a ring of D slots, in `version` the weight version that each was taken at, and in `then`
    these weights, where a correction asks for them."""

    grads: Tree  # leaves [D, ...]
    version: jax.Array  # [D] int32
    then: Tree = ()  # leaves [D, ...]


class Lines(NamedTuple):
    """What is fixed: the length D of each stage's line, what is done about its late gradients, ADL's M gradients per
    update, summed or averaged, and whether gradients that are not finite make no update."""

    delays: Sequence[int]
    corrections: Sequence[Correction]
    accumulate: int = 1
    mean: bool = False
    guard: bool = False


class Sum(NamedTuple):
    """The gradients since the last update: their sum, their number, and the oldest weight version among them."""

    grads: Tree
    summed: jax.Array  # int32
    since: jax.Array  # int32


class DelayState(NamedTuple):
    """Everything a run is: batches seen in all and since the lines were empty; per stage its state, line, counters.

    sums: per stage, or (None, ...) where every gradient is an update.
    """

    entered: jax.Array  # int32
    batch: jax.Array  # int32
    stages: tuple[StageState, ...]
    lines: tuple[Line, ...]
    sums: tuple[Sum | None, ...]
    updates: tuple[jax.Array, ...]  # int32 each
    staleness: tuple[jax.Array, ...]  # int32 each, the largest measured


def start(stages: Sequence[StageState], lines: Lines) -> DelayState:
    """Empty delay lines behind freshly initialised stages."""
    zero = jnp.zeros((), jnp.int32)
    stages = [s._replace(correction=c.start(s.params)) for s, c in zip(stages, lines.corrections, strict=True)]
    each = zip(stages, lines.delays, lines.corrections, strict=True)
    empty = tuple(empty_line(s.params, D, keeps_weights=c.gradient is not None) for s, D, c in each)
    sums = tuple(Sum(jax.tree.map(jnp.zeros_like, s.params), zero, zero) for s in stages)
    counters = (zero,) * len(stages)
    sums = sums if lines.accumulate > 1 else (None,) * len(stages)
    return DelayState(zero, zero, tuple(stages), empty, sums, counters, counters)


class Gradient(NamedTuple):
    """One of a line: the gradient, the weight version it was taken at, and these weights, () where nobody asks for
    them."""

    grads: Tree
    version: jax.Array
    then: Tree


def empty_line(params: Tree, D: int, keeps_weights: bool) -> Line:
    slots = jax.tree.map(lambda p: jnp.zeros((D, *p.shape), p.dtype), params)
    return Line(slots, jnp.zeros((D,), jnp.int32), slots if keeps_weights else ())


def read(line: Line, slot: jax.Array) -> Gradient:
    """What is in a slot of the ring."""
    return Gradient(*jax.tree.map(lambda ring: jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False), tuple(line)))


def write(line: Line, slot: jax.Array, gradient: Gradient) -> Line:
    put = jax.lax.dynamic_update_index_in_dim
    return Line(*jax.tree.map(lambda ring, new: put(ring, new, slot, 0), tuple(line), tuple(gradient)))


class Held(NamedTuple):
    """Between a batch's forward and backward pass: per stage its closure, its input, its next collections, and the
    weights that it went forward with."""

    closures: tuple[Any, ...]
    inputs: tuple[Tree, ...]
    extras: tuple[dict[str, Tree], ...]
    params: tuple[Tree, ...]


def forward(functions: Sequence[Functions], lines: Lines, stages: Sequence[StageState], x: Tree, labels: Tree):
    """(loss, what the backward pass needs) of one batch through all stages."""
    held, K, messages = [], len(functions), {"x": x}
    for k, (f, s, c) in enumerate(zip(functions, stages, lines.corrections, strict=True), 1):
        x = messages["x"]
        params = c.forward(s.params, s.correction) if c.forward else s.params
        messages, extra, closure = f.forward(params, s.extra, x, labels if k == K else None)
        held.append((closure, x, extra, params))
    return messages["loss"], Held(*zip(*held, strict=True))


class Progress(NamedTuple):
    """What gradients move of a stage."""

    params: Tree
    opt_state: Tree
    correction: Tree
    sum: Sum | None
    updates: jax.Array
    staleness: jax.Array


def apply(f: Functions, c: Correction, lines: Lines, at: Progress, late: Gradient, due: jax.Array) -> Progress:
    """Where `due`, corrects a gradient, adds it to the stage's sum and, if that makes it whole, updates the stage."""
    whole, grads, version = due, late.grads, late.version
    if c.gradient:
        grads, corrected = guarded(c.gradient, lines.guard)(grads, late.then, at.params, at.correction)
        at = at._replace(correction=where(due, corrected, at.correction))
    if at.sum is not None:
        fresh = at.sum.summed == 0
        summed = Sum(
            jax.tree.map(lambda s, g: jnp.where(fresh, g, s + g), at.sum.grads, grads),
            at.sum.summed + 1,
            jnp.where(fresh, version, at.sum.since),
        )
        at = at._replace(sum=where(due, summed, at.sum))
        whole = due & (summed.summed == lines.accumulate)
    return step(f, lines, at, grads, version, whole)


def step(f: Functions, lines: Lines, at: Progress, grads: Tree, version: jax.Array, whole: jax.Array) -> Progress:
    """Where `whole`, the update by the gradient, or by the sum if there is one."""
    if at.sum is not None:
        n = jnp.maximum(at.sum.summed, 1)
        grads = jax.tree.map(lambda s: s / n.astype(s.dtype), at.sum.grads) if lines.mean else at.sum.grads
        version = at.sum.since
        at = at._replace(sum=at.sum._replace(summed=jnp.where(whole, 0, at.sum.summed)))
    params, opt_state = where(whole, f.update(at.params, at.opt_state, grads), (at.params, at.opt_state))
    staleness = jnp.where(whole, jnp.maximum(at.staleness, at.updates - version), at.staleness)
    return Progress(params, opt_state, at.correction, at.sum, at.updates + whole.astype(jnp.int32), staleness)


def backward(functions: Sequence[Functions], lines: Lines, run: DelayState, held: Held) -> DelayState:
    """One batch of BP, each gradient sent through its line; the state after the updates that fall due.

    Stage k applies the gradient of batch b-D; for b <= D nothing happens to it, no weight decay either (the fill).
    """
    batch, dy, grads = run.batch + 1, None, []
    for f, params, closure, x in reversed(list(zip(functions, held.params, held.closures, held.inputs, strict=True))):
        g, dy = f.backward(closure, params, x, dy)
        grads.append(g)
    moved, rings = [], []
    each = zip(functions, lines.delays, lines.corrections, reversed(grads), strict=True)
    for i, (f, D, c, g) in enumerate(each):
        line, late = run.lines[i], Gradient(g, run.updates[i], held.params[i] if c.gradient else ())
        if D:
            slot = (batch - 1) % D
            late, line = read(line, slot), write(line, slot, late)
        due = batch > D if D else jnp.asarray(True)
        moved.append(apply(f, c, lines, progress(run, i), late, due))
        rings.append(line)
    return advanced(run._replace(entered=run.entered + 1, batch=batch, lines=tuple(rings)), moved, held.extras)


def drain(functions: Sequence[Functions], lines: Lines, run: DelayState) -> DelayState:
    """Applies the gradients still in the lines, oldest first, and what is left of a sum; both are then empty."""
    moved = []
    for i, (f, D, c) in enumerate(zip(functions, lines.delays, lines.corrections, strict=True)):
        at = progress(run, i)
        for late in range(1, D + 1):
            of = run.batch + late - D  # the batch whose gradient is next; below 1 if the run was that short
            at = apply(f, c, lines, at, read(run.lines[i], (of - 1) % D), of >= 1)
        if at.sum is not None:
            at = step(f, lines, at, at.sum.grads, at.sum.since, at.sum.summed > 0)
        moved.append(at)
    return advanced(run._replace(batch=jnp.zeros((), jnp.int32)), moved, [s.extra for s in run.stages])


def progress(run: DelayState, i: int) -> Progress:
    s = run.stages[i]
    return Progress(s.params, s.opt_state, s.correction, run.sums[i], run.updates[i], run.staleness[i])


def advanced(run: DelayState, moved: Sequence[Progress], extras: Sequence[dict[str, Tree]]) -> DelayState:
    """The run after its stages have moved."""
    stages = (
        StageState(at.params, extra, at.opt_state, correction=at.correction)
        for at, extra in zip(moved, extras, strict=True)
    )
    *_, sums, updates, staleness = zip(*moved, strict=True)
    return run._replace(stages=tuple(stages), sums=sums, updates=updates, staleness=staleness)
