"""The whole pipeline on one device, at the speed of BP.

Count by batches instead of ticks: when batch b passes stage k, the stage's weights contain exactly the gradients of the
batches up to b-1-D, where D is the schedule's `behind`. So a pipeline with stashed weights *is* BP on each batch, with
a delay line of length D for each stage's gradients before its optimizer. That holds for FDG and for every method whose
gradients are taken at the weights of the forward pass. It does not hold for `current` weights.

This module writes it as pure functions, for accelerators: many batches in one dispatch under `lax.scan`. On a CPU, the
delay-line engine is the host loop with BP's schedule and delayed stages (fdg_jax.engine.host_engine says why).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdg_jax.stage.functions import Functions, StageState
from fdg_jax.stage.nonfinite import select
from fdg_jax.stage.update import UpdateRule, was_made

Tree = Any


class Line(NamedTuple):
    """A delay line: a ring of D gradients.

    grads: the gradients; leaves are [D, ...].
    version: the weight version at which each was taken, [D] int32.
    then: these weights, if a correction needs them, else (); leaves are [D, ...].
    """

    grads: Tree  # leaves [D, ...]
    version: jax.Array  # [D] int32
    then: Tree = ()  # leaves [D, ...]


class LineOptions(NamedTuple):
    """What does not change during a run.

    delays: for each stage, the length D of its delay line.
    rules: for each stage, how a gradient becomes new weights.
    accumulate: gradients per update (ADL's M).
    mean: whether these are averaged instead of summed.
    """

    delays: Sequence[int]
    rules: Sequence[UpdateRule]
    accumulate: int = 1
    mean: bool = False


class Sum(NamedTuple):
    """The gradients since the last update.

    grads: their sum.
    summed: their number, int32.
    since: the oldest weight version at which one was taken, int32.
    """

    grads: Tree
    summed: jax.Array  # int32
    since: jax.Array  # int32


class DelayState(NamedTuple):
    """Everything in a run that changes.

    entered: batches in all, int32.
    batch: batches since the delay lines were empty, int32.
    stages, lines: for each stage, its state and its delay line.
    sums: for each stage, its gradient sum; None if every gradient makes an update.
    updates: for each stage, its updates so far, int32.
    staleness: for each stage, the largest measured staleness, int32.
    """

    entered: jax.Array  # int32
    batch: jax.Array  # int32
    stages: tuple[StageState, ...]
    lines: tuple[Line, ...]
    sums: tuple[Sum | None, ...]
    updates: tuple[jax.Array, ...]  # int32 each
    staleness: tuple[jax.Array, ...]  # int32 each, the largest measured


def start(stages: Sequence[StageState], lines: LineOptions) -> DelayState:
    """The state of a run before its first batch.

    Arguments:
        stages: the initial states of the stages.
        lines: what does not change.
    """
    zero = jnp.zeros((), jnp.int32)
    firsts = [rule.start(s.params) for s, rule in zip(stages, lines.rules, strict=True)]
    stages = [s._replace(opt_state=o, correction=c) for s, (o, c) in zip(stages, firsts, strict=True)]
    each = zip(stages, lines.delays, lines.rules, strict=True)
    empty = tuple(empty_line(s.params, D, keeps_weights=r.correction.gradient is not None) for s, D, r in each)
    sums = tuple(Sum(jax.tree.map(jnp.zeros_like, s.params), zero, zero) for s in stages)
    counters = (zero,) * len(stages)
    sums = sums if lines.accumulate > 1 else (None,) * len(stages)
    return DelayState(zero, zero, tuple(stages), empty, sums, counters, counters)


class Gradient(NamedTuple):
    """One gradient of a delay line.

    grads: the gradient.
    version: the weight version at which it was taken.
    then: these weights; () if nobody needs them.
    """

    grads: Tree
    version: jax.Array
    then: Tree


def empty_line(params: Tree, D: int, keeps_weights: bool) -> Line:
    """A delay line of D zero gradients. keeps_weights: whether it holds the weights at which they were taken."""
    slots = jax.tree.map(lambda p: jnp.zeros((D, *p.shape), p.dtype), params)
    return Line(slots, jnp.zeros((D,), jnp.int32), slots if keeps_weights else ())


def read_slot(line: Line, slot: jax.Array) -> Gradient:
    """The gradient in a slot of the ring."""
    return Gradient(*jax.tree.map(lambda ring: jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False), tuple(line)))


def write_slot(line: Line, slot: jax.Array, gradient: Gradient) -> Line:
    """The ring with another gradient in a slot."""
    put = jax.lax.dynamic_update_index_in_dim
    return Line(*jax.tree.map(lambda ring, new: put(ring, new, slot, 0), tuple(line), tuple(gradient)))


class ForwardResults(NamedTuple):
    """What is kept between the forward and the backward pass of a batch, for each stage.

    closures, inputs: its VJP closure and its inputs.
    extras: its collections after the forward pass.
    params: the weights of the forward pass.
    """

    closures: tuple[Any, ...]
    inputs: tuple[Tree, ...]
    extras: tuple[dict[str, Tree], ...]
    params: tuple[Tree, ...]


def forward(functions: Sequence[Functions], lines: LineOptions, stages: Sequence[StageState], x: Tree, labels: Tree):
    """One batch forward through all stages.

    Arguments:
        functions: of each stage.
        lines: what does not change.
        stages: the state of each stage.
        x, labels: the batch.

    Returns: (loss, what the backward pass needs).
    """
    held, K, messages = [], len(functions), {"x": x}
    for k, (f, s, rule) in enumerate(zip(functions, stages, lines.rules, strict=True), 1):
        x, ahead = messages["x"], rule.correction.forward
        params = ahead(s.params, s.correction) if ahead else s.params
        messages, extra, closure = f.forward(params, s.extra, x, labels if k == K else None)
        held.append((closure, x, extra, params))
    return messages["loss"], ForwardResults(*zip(*held, strict=True))


class Progress(NamedTuple):
    """What gradients change in a stage, named as in StageState and DelayState."""

    params: Tree
    opt_state: Tree
    correction: Tree
    sum: Sum | None
    updates: jax.Array
    staleness: jax.Array


def apply(rule: UpdateRule, lines: LineOptions, at: Progress, late: Gradient, due: jax.Array) -> Progress:
    """If `due`, corrects a gradient, adds it to the stage's sum, and updates the stage once the sum is complete."""
    whole, grads, version = due, late.grads, late.version
    if rule.correction.gradient:
        grads, corrected = rule.correct(grads, late.then, at.params, at.correction)
        at = at._replace(correction=select(due, corrected, at.correction))
    if at.sum is not None:
        fresh = at.sum.summed == 0
        summed = Sum(
            jax.tree.map(lambda s, g: jnp.where(fresh, g, s + g), at.sum.grads, grads),
            at.sum.summed + 1,
            jnp.where(fresh, version, at.sum.since),
        )
        at = at._replace(sum=select(due, summed, at.sum))
        whole = due & (summed.summed == lines.accumulate)
    return update(rule, lines, at, grads, version, whole)


def update(
    rule: UpdateRule, lines: LineOptions, at: Progress, grads: Tree, version: jax.Array, whole: jax.Array
) -> Progress:
    """Where `whole` is true, updates the stage by the gradient, or by the sum if there is one."""
    if at.sum is not None:
        n = jnp.maximum(at.sum.summed, 1)
        grads = jax.tree.map(lambda s: s / n.astype(s.dtype), at.sum.grads) if lines.mean else at.sum.grads
        version = at.sum.since
        at = at._replace(sum=at.sum._replace(summed=jnp.where(whole, 0, at.sum.summed)))
    moved, correction = rule.new_weights(at.params, at.opt_state, grads), at.correction
    if rule.correction.updated:
        correction = rule.remember(at.params, moved[0], correction, was_made(at.opt_state, moved[1]))
    params, opt_state, correction = select(whole, (*moved, correction), (at.params, at.opt_state, at.correction))
    staleness = jnp.where(whole, jnp.maximum(at.staleness, at.updates - version), at.staleness)
    return Progress(params, opt_state, correction, at.sum, at.updates + whole.astype(jnp.int32), staleness)


def backward(functions: Sequence[Functions], lines: LineOptions, run: DelayState, held: ForwardResults) -> DelayState:
    """One batch backward through all stages; applies the gradients that come out of the delay lines.

    Stage k applies the gradient of batch b-D. For b <= D (the fill) nothing happens to it, not even weight decay.

    Arguments:
        functions: of each stage.
        lines: what does not change.
        run: the state before.
        held: what `forward` returned for this batch.

    Returns: the state after the updates that are due.
    """
    batch, dy, grads = run.batch + 1, None, []
    for f, params, closure, x in reversed(list(zip(functions, held.params, held.closures, held.inputs, strict=True))):
        g, dy = f.backward(closure, params, x, dy)
        grads.append(g)
    moved, rings = [], []
    for i, (rule, D, g) in enumerate(zip(lines.rules, lines.delays, reversed(grads), strict=True)):
        line, late = run.lines[i], Gradient(g, run.updates[i], held.params[i] if rule.correction.gradient else ())
        if D:
            slot = (batch - 1) % D
            late, line = read_slot(line, slot), write_slot(line, slot, late)
        due = batch > D if D else jnp.asarray(True)
        moved.append(apply(rule, lines, progress_of(run, i), late, due))
        rings.append(line)
    return with_progress(run._replace(entered=run.entered + 1, batch=batch, lines=tuple(rings)), moved, held.extras)


def drain(lines: LineOptions, run: DelayState) -> DelayState:
    """Applies the gradients that are still in the delay lines, oldest first, and then what is left of the sums. What
    corrections predict from begins anew.

    Arguments:
        lines: what does not change.
        run: the state before.

    Returns: the state, with empty delay lines and sums.
    """
    moved = []
    for i, (rule, D) in enumerate(zip(lines.rules, lines.delays, strict=True)):
        at, anew = progress_of(run, i), rule.correction.drained
        for late in range(1, D + 1):
            of = run.batch + late - D  # the batch whose gradient is next; below 1 if the run was that short
            at = apply(rule, lines, at, read_slot(run.lines[i], (of - 1) % D), of >= 1)
        if at.sum is not None:
            at = update(rule, lines, at, at.sum.grads, at.sum.since, at.sum.summed > 0)
        moved.append(at._replace(correction=anew(at.correction)) if anew else at)
    return with_progress(run._replace(batch=jnp.zeros((), jnp.int32)), moved, [s.extra for s in run.stages])


def progress_of(run: DelayState, i: int) -> Progress:
    """What gradients have changed in stage k = i + 1."""
    s = run.stages[i]
    return Progress(s.params, s.opt_state, s.correction, run.sums[i], run.updates[i], run.staleness[i])


def with_progress(run: DelayState, moved: Sequence[Progress], extras: Sequence[dict[str, Tree]]) -> DelayState:
    """The state of the run after its stages have changed."""
    stages = (
        StageState(at.params, extra, at.opt_state, correction=at.correction)
        for at, extra in zip(moved, extras, strict=True)
    )
    *_, sums, updates, staleness = zip(*moved, strict=True)
    return run._replace(stages=tuple(stages), sums=sums, updates=updates, staleness=staleness)
