"""The whole pipeline on one device, at the speed of BP.

Count batches instead of ticks. When batch b passes stage k, the stage's weights contain exactly the gradients of the
batches up to b-1-D. Here D is the stage's entry in the schedule's `delays`. So a pipeline with stashed weights equals
BP on each batch with a delay line of length D between each stage's gradients and its optimizer. This holds for FDG and
for every method whose gradients are taken at the weights of the forward pass. It does not hold for `current` weights.

This module has the delay line as pure functions for accelerators, where `lax.scan` trains many batches in one dispatch.
On a CPU, the delay-line engine is the host loop with BP's schedule and delayed stages (fdg_jax.engine.host_engine says
why).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdg_jax.stages.functions import Functions, StageState
from fdg_jax.stages.nonfinite import select
from fdg_jax.stages.packing import Packing
from fdg_jax.stages.update import UpdateRule, was_made

Tree = Any


class Gradient(NamedTuple):
    """A gradient. A stage's delay line is a ring buffer of gradients: a `Gradient` with leaves [slots(D), ...].

    grads: the gradient.
    version: the weight version at which the gradient was taken, int32.
    then: the weights of that version, if a correction needs them, else ().
    """

    grads: Tree
    version: jax.Array  # int32
    then: Tree = ()


class LineOptions(NamedTuple):
    """What does not change during a run.

    delays: for each stage, the length D of its delay line.
    rules: for each stage, how a gradient becomes new weights.
    accumulate: gradients per update (ADL's M).
    mean: whether these gradients are averaged instead of summed.
    dtype: the dtype of waiting gradients; None keeps their own.
    keep_weights: whether the weights of the forward pass wait beside every gradient, even if no correction needs them.
    packings: for each stage, how a waiting `Gradient` is packed into few arrays; None: not packed.
    """

    delays: Sequence[int]
    rules: Sequence[UpdateRule]
    accumulate: int = 1
    mean: bool = False
    dtype: Any = None
    keep_weights: bool = False
    packings: Sequence[Packing] | None = None

    def pack(self, i: int, gradient: Gradient) -> Tree:
        """A gradient of stage k = i + 1 as it waits."""
        return self.packings[i].pack(gradient) if self.packings else gradient

    def unpack(self, i: int, waiting: Tree) -> Gradient:
        """The inverse of `pack`."""
        return self.packings[i].unpack(waiting) if self.packings else waiting

    def rings(self, change: Callable[[int, Tree], Tree], run: DelayState) -> DelayState:
        """The state of a run after `change` (`pack` or `unpack`) is applied to the gradients in its rings."""
        changed = [jax.vmap(partial(change, i))(line) if D else line
                   for i, (D, line) in enumerate(zip(self.delays, run.lines, strict=True))]  # fmt: skip
        return run._replace(lines=tuple(changed))


class Sum(NamedTuple):
    """The gradients since the last update.

    grads: their sum.
    summed: their number, int32.
    since: the oldest weight version at which one of the gradients was taken, int32.
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
    lines: tuple[Gradient, ...]
    sums: tuple[Sum | None, ...]
    updates: tuple[jax.Array, ...]  # int32 each
    staleness: tuple[jax.Array, ...]  # int32 each, the largest measured


class Progress(NamedTuple):
    """The parts of a stage's state that gradients change, named as in DelayState."""

    state: StageState
    sum: Sum | None
    updates: jax.Array
    staleness: jax.Array


class Passed(NamedTuple):
    """What a stage keeps of a batch between its forward and its backward pass.

    closure, x: the stage's VJP closure and inputs.
    extra: the stage's collections after the forward pass.
    params: the weights of the forward pass.
    """

    closure: Any
    x: Tree
    extra: dict[str, Tree]
    params: Tree


def start(stages: Sequence[StageState], lines: LineOptions) -> DelayState:
    """The state of a run before its first batch.

    Arguments:
        stages: the initial states of the stages.
        lines: what does not change.
    """
    zero = jnp.zeros((), jnp.int32)
    first, rings, sums = zip(*[start_stage(state, lines, i) for i, state in enumerate(stages)], strict=True)
    counters = (zero,) * len(stages)
    return DelayState(zero, zero, first, rings, sums, counters, counters)


def start_stage(state: StageState, lines: LineOptions, i: int) -> tuple[StageState, Gradient, Sum | None]:
    """The state, the delay line and the gradient sum of stage k = i + 1 before the first batch."""
    rule, n = lines.rules[i], slots(lines.delays[i])
    opt_state, correction = rule.start(state.params)
    kept = rule.correction.gradient or lines.keep_weights

    def empty(p: Any, dtype: Any = None) -> jax.Array:  # made of the parameter, so that it is sharded like it
        return jnp.broadcast_to(jnp.zeros_like(p, dtype), (n, *p.shape))

    ring = Gradient(
        jax.tree.map(lambda p: empty(p, lines.dtype), state.params),
        jnp.zeros((n,), jnp.int32),
        jax.tree.map(empty, state.params) if kept else (),
    )
    zeros = [jnp.zeros((), jnp.int32) for _ in range(2)]  # two arrays, as they may be donated
    total = Sum(jax.tree.map(jnp.zeros_like, state.params), *zeros) if lines.accumulate > 1 else None
    return state._replace(opt_state=opt_state, correction=correction), ring, total


def slots(D: int) -> int:
    """The length of a ring in which D gradients wait.

    A new gradient is written before the oldest is read, so there is one slot more. With D slots, the new gradient would
    overwrite the oldest. XLA does not know that the read comes first, so it would copy the whole ring at every batch.
    """
    return D + 1 if D else 0


def read_slot(line: Tree, slot: jax.Array) -> Tree:
    """The gradient in a slot of the ring."""
    return jax.tree.map(lambda ring: jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False), line)


def write_slot(line: Tree, slot: jax.Array, gradient: Tree) -> Tree:
    """The ring with another gradient in a slot."""
    put = jax.lax.dynamic_update_index_in_dim
    return jax.tree.map(lambda ring, new: put(ring, new.astype(ring.dtype), slot, 0), line, gradient)


def forward(
    functions: Sequence[Functions], lines: LineOptions, stages: Sequence[StageState], x: Tree, labels: Tree
) -> tuple[Tree, list[Passed]]:
    """One batch forward through all stages.

    Arguments:
        functions: of each stage.
        lines: what does not change.
        stages: the state of each stage.
        x, labels: the batch.

    Returns: (loss, what the backward pass needs of each stage).
    """
    passed, K, messages = [], len(functions), {"x": x}
    for k, (f, s, rule) in enumerate(zip(functions, stages, lines.rules, strict=True), 1):
        x, ahead = messages["x"], rule.correction.forward
        params = ahead(s.params, s.correction) if ahead else s.params
        messages, extra, closure = f.forward(params, s.extra, x, labels if k == K else None)
        passed.append(Passed(closure, x, extra, params))
    return messages["loss"], passed


class Used(NamedTuple):
    """The effect of the gradient that came out of a delay line.

    at: the stage's `Progress` afterwards.
    line: the delay line afterwards.
    late: the gradient that came out. due: whether it was used; none is used while the line fills.
    changes: what was added to the weights; zeros without an update.
    """

    at: Progress
    line: Any
    late: Gradient
    due: jax.Array
    changes: Tree


def use(lines: LineOptions, i: int, at: Progress, line: Any, new: Gradient, batch: jax.Array, **extra: Any) -> Used:
    """Puts a gradient into the delay line of stage k = i + 1, and uses the gradient that comes out.

    Arguments:
        lines: what does not change.
        at: the stage's `Progress` before.
        line: its delay line; () is enough where D is 0.
        new: the gradient.
        batch: the number of the gradient's batch since the lines were empty, from 1.
        extra: further arguments of the optimizer.
    """
    rule, D, late, due = lines.rules[i], lines.delays[i], new, jnp.asarray(True)
    if D:
        due = batch > D
        line = write_slot(line, (batch - 1) % (D + 1), lines.pack(i, new))
        late = lines.unpack(i, read_slot(line, batch % (D + 1)))
    at, changes = use_late(rule, lines, at, late, due, **extra)
    return Used(at, line, late, due, changes)


def use_late(
    rule: UpdateRule, lines: LineOptions, at: Progress, late: Gradient, due: jax.Array, **extra: Any
) -> tuple[Progress, Tree]:
    """If `due`, corrects a gradient, adds it to the stage's sum, and updates the stage once the sum is complete.

    Returns: (the stage's `Progress`, what was added to its weights).
    """
    whole, version, state = due, late.version, at.state
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), late.grads, state.params) if lines.dtype else late.grads
    if rule.correction.gradient:
        grads, corrected = rule.correct(grads, late.then, state.params, state.correction)
        at = at._replace(state=state._replace(correction=select(due, corrected, state.correction)))
    if at.sum is not None:
        fresh = at.sum.summed == 0
        summed = Sum(
            jax.tree.map(lambda s, g: jnp.where(fresh, g, s + g), at.sum.grads, grads),
            at.sum.summed + 1,
            jnp.where(fresh, version, at.sum.since),
        )
        at = at._replace(sum=select(due, summed, at.sum))
        whole = due & (summed.summed == lines.accumulate)
    return update_where(whole, rule, lines, at, grads, version, **extra)


def update_where(
    whole: jax.Array, rule: UpdateRule, lines: LineOptions, at: Progress, grads: Tree, version: jax.Array, **extra: Any
) -> tuple[Progress, Tree]:
    """Where `whole` is true, updates the stage: by the gradient, or by the gradient sum if there is a sum.

    Returns: (the stage's `Progress`, what was added to its weights).
    """
    state, total = at.state, at.sum
    if total is not None:
        n = jnp.maximum(total.summed, 1)
        grads = jax.tree.map(lambda s: s / n.astype(s.dtype), total.grads) if lines.mean else total.grads
        version, total = total.since, total._replace(summed=jnp.where(whole, 0, total.summed))
    params, opt_state, changes = rule.new_weights(state.params, state.opt_state, grads, **extra)
    correction = state.correction
    if rule.correction.updated:
        correction = rule.remember(state.params, params, correction, was_made(state.opt_state, opt_state))
    new, old = (params, opt_state, correction), (state.params, state.opt_state, state.correction)
    params, opt_state, correction = select(whole, new, old)
    changes = select(whole, changes, jax.tree.map(jnp.zeros_like, changes))
    staleness = jnp.where(whole, jnp.maximum(at.staleness, at.updates - version), at.staleness)
    state = state._replace(params=params, opt_state=opt_state, correction=correction)
    return Progress(state, total, at.updates + whole.astype(jnp.int32), staleness), changes


def backward(
    functions: Sequence[Functions], lines: LineOptions, run: DelayState, passed: Sequence[Passed]
) -> DelayState:
    """One batch backward through all stages; applies the gradients that come out of the delay lines.

    Stage k applies the gradient of batch b-D. For b <= D (the fill) the weights of stage k do not change, not even by
    weight decay.

    Arguments:
        functions: of each stage.
        lines: what does not change.
        run: the state before.
        passed: what `forward` returned for this batch.

    Returns: the state after the updates that are due.
    """
    batch, dy, grads = run.batch + 1, None, []
    for f, (closure, x, _, params) in reversed(list(zip(functions, passed, strict=True))):
        g, dy = f.backward(closure, params, x, dy)
        grads.append(g)
    used = []
    for i, (rule, g) in enumerate(zip(lines.rules, reversed(grads), strict=True)):
        at = progress_of(run, i)
        at = at._replace(state=at.state._replace(extra=passed[i].extra))
        new = Gradient(g, run.updates[i], passed[i].params if rule.correction.gradient else ())
        used.append(use(lines, i, at, run.lines[i], new, batch))
    rings = tuple(each.line for each in used)
    return with_progress(run._replace(entered=run.entered + 1, batch=batch, lines=rings), [each.at for each in used])


def drain(lines: LineOptions, run: DelayState) -> DelayState:
    """Applies the gradients that are still in the delay lines, oldest first, and then the incomplete sums. Afterwards
    the predictions of corrections begin anew.

    Arguments:
        lines: what does not change.
        run: the state before.

    Returns: the state, with empty delay lines and sums.
    """
    moved = [drain_stage(lines, i, progress_of(run, i), line, run.batch) for i, line in enumerate(run.lines)]
    return with_progress(run._replace(batch=jnp.zeros((), jnp.int32)), moved)


def drain_stage(lines: LineOptions, i: int, at: Progress, line: Any, batch: jax.Array) -> Progress:
    """`drain` for stage k = i + 1 alone. batch: the number of the newest batch since the lines were empty."""
    rule, D = lines.rules[i], lines.delays[i]

    def use_next(late: Any, at: Progress) -> Progress:
        of = batch + late - D  # the batch whose gradient is next; below 1 if the run was that short
        return use_late(rule, lines, at, lines.unpack(i, read_slot(line, (of - 1) % (D + 1))), of >= 1)[0]

    at = jax.lax.fori_loop(1, D + 1, use_next, at) if D else at
    if at.sum is not None:
        at, _ = update_where(at.sum.summed > 0, rule, lines, at, at.sum.grads, at.sum.since)
    anew, state = rule.correction.drained, at.state
    return at._replace(state=state._replace(correction=anew(state.correction))) if anew else at


def progress_of(run: DelayState, i: int) -> Progress:
    """The `Progress` of stage k = i + 1."""
    return Progress(run.stages[i], run.sums[i], run.updates[i], run.staleness[i])


def with_progress(run: DelayState, moved: Sequence[Progress]) -> DelayState:
    """The state of the run after its stages have changed."""
    stages, sums, updates, staleness = zip(*moved, strict=True)
    return run._replace(stages=stages, sums=sums, updates=updates, staleness=staleness)
