"""The update: how a late gradient becomes new weights. Nothing else in this library changes weights.

    grads -> correct -> (sum over `accumulate` passes) -> new_weights -> remember

- `correct`: the correction's `gradient`, at the moment when a late gradient is used.
- `new_weights`: measures the gradient, lets the optax chain make new weights of it, and averages the weights. If the
  gradient has a NaN or an infinity, refuses the result. FDG's beta and other corrections are in front of the chain or
  around it.
- `remember`: the correction's `updated`.

These are pure functions on plain trees. `Stage` compiles them with packed arguments (fdg_jax.stages.packing), and
fdg_jax.stages.delay_line traces them inside its scan. The host reads losses late, so it would notice a spoilt gradient
only after several updates. Therefore the guard is inside the update. In a pipeline `optax.clip_by_global_norm` clips by
the norm of one stage's gradient; the measured norms show which threshold each stage needs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from fdg_jax.corrections.interface import NONE, Correction
from fdg_jax.stages.functions import Spec
from fdg_jax.stages.nonfinite import after_refusal, all_finite, select

Tree = Any


class Guarded(NamedTuple):
    """The state of a guarded optimizer.

    inner: the state of the optimizer itself.
    updates: how many updates were tried, refused ones included.
    bad: the number (from 1) of the first refused update; 0 if none was refused.
    refused: how many were refused.
    """

    inner: Tree
    updates: jax.Array  # int32
    bad: jax.Array  # int32
    refused: jax.Array  # int32


class Measured(NamedTuple):
    """The state of an optimizer whose gradients are measured.

    inner: the state of the optimizer itself.
    norm: the norm of the newest gradient used in an update, float32; 0 before the first update.
    """

    inner: Tree
    norm: jax.Array  # float32


class Averaged(NamedTuple):
    """The state of an optimizer whose weights are averaged.

    inner: the state of the optimizer itself.
    average: the moving average of the initial weights and of the weights after each update.
    """

    inner: Tree
    average: Tree


class UpdateRule(NamedTuple):
    """The update of a stage.

    optimizer: the optax chain, with what the correction adds to it.
    correction: the correction of late gradients.
    guard: whether updates with non-finite gradients are refused.
    norms: whether gradients are measured.
    ema: the decay of the exponential moving average of the weights; None: no average is kept.
    """

    optimizer: optax.GradientTransformation
    correction: Correction = NONE
    guard: bool = False
    norms: bool = False
    ema: float | None = None

    @classmethod
    def of(cls, spec: Spec) -> "UpdateRule":
        """The rule of a stage."""
        return cls(spec.optimizer, spec.correction, spec.guard, spec.norms, spec.ema)

    def start(self, params: Tree) -> tuple[Tree, Tree]:
        """The first states of (the optimizer, the correction)."""
        state = self.optimizer.init(params)
        state = Averaged(state, jax.tree.map(as_average, params)) if self.ema else state
        state = Measured(state, jnp.float32(0)) if self.norms else state
        state = Guarded(state, *[jnp.zeros((), jnp.int32) for _ in range(3)]) if self.guard else state
        return state, self.correction.start(params)

    def correct(self, grads: Tree, then: Tree, now: Tree, state: Tree) -> tuple[Tree, Tree]:
        """(the corrected gradient, the correction's state). With a guard, no NaN or infinity enters the state.

        Arguments:
            grads: the late gradient.
            then, now: the weights of its forward pass, and the newest ones.
            state: the correction's state.
        """
        assert self.correction.gradient
        corrected, after = self.correction.gradient(grads, then, now, state)
        return corrected, select(all_finite(grads) & all_finite(corrected), after, state) if self.guard else after

    def new_weights(self, params: Tree, opt_state: Tree, grads: Tree, **extra: Any) -> tuple[Tree, Tree, Tree]:
        """(the new weights, the optimizer's new state, what was added to the weights). After a refusal the weights,
        their average and the moments are unchanged, but the counts of schedules have gone on. extra: further arguments
        of the optimizer."""
        changes, moved = self.optimizer.update(grads, unwrapped(opt_state), params, **extra)
        updated = optax.apply_updates(params, changes)
        if self.ema:
            rate, old = 1 - self.ema, layer(opt_state, Averaged).average
            newest = jax.tree.map(as_average, evaluated(updated, moved))
            moved = Averaged(moved, jax.tree.map(lambda a, w: a + rate * (w - a), old, newest))
        if self.norms:
            squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(grads)]
            moved = Measured(moved, jnp.sqrt(sum(squares, jnp.float32(0))))
        if not self.guard:
            return updated, moved, changes
        # The update is always computed, then selected, so that it is compiled, and rounded, as without a guard.
        good, number = all_finite(grads), opt_state.updates + 1
        changes = select(good, changes, jax.tree.map(jnp.zeros_like, changes))
        updated, inner = select(good, (updated, moved), (params, after_refusal(opt_state.inner, moved)))
        first = jnp.where((opt_state.bad == 0) & ~good, number, opt_state.bad)
        return updated, Guarded(inner, number, first, opt_state.refused + (~good).astype(jnp.int32)), changes

    def remember(self, before: Tree, after: Tree, state: Tree, made: jax.Array | None) -> Tree:
        """The correction's state after an update. A refused update changes only the counts of schedules.

        Arguments:
            before, after: the weights before and after the update.
            state: the correction's state.
            made: whether the update was made; None without a guard.
        """
        assert self.correction.updated
        remembered = self.correction.updated(before, after, state)
        return remembered if made is None else select(made, remembered, after_refusal(state, remembered))


def as_average(weight: jax.Array) -> jax.Array:
    """A weight in the dtype of its average. This is at least float32, since small steps would be lost in bfloat16."""
    return weight.astype(jnp.promote_types(weight.dtype, jnp.float32))


def layer(opt_state: Tree, kind: type) -> Any:
    """The `Guarded`, `Measured` or `Averaged` around an optimizer's state; None if it is not there."""
    while isinstance(opt_state, Guarded | Measured | Averaged) and not isinstance(opt_state, kind):
        opt_state = opt_state.inner
    return opt_state if isinstance(opt_state, kind) else None


def unwrapped(opt_state: Tree) -> Tree:
    """The state of the optimizer itself."""
    while isinstance(opt_state, Guarded | Measured | Averaged):
        opt_state = opt_state.inner
    return opt_state


def was_made(before: Tree, after: Tree) -> jax.Array | None:
    """Whether an update was made and not refused, from the optimizer's states before and after; None without a
    guard."""
    return after.refused == before.refused if isinstance(after, Guarded) else None


def first_refused(opt_state: Tree) -> Any:
    """The number of the first refused update, 0 if no update was refused; None without a guard."""
    return opt_state.bad if isinstance(opt_state, Guarded) else None


def newest_norm(opt_state: Tree) -> Any:
    """The norm of the newest gradient; None if gradients are not measured."""
    measured = layer(opt_state, Measured)
    return measured.norm if measured else None


def states_of(opt_state: Tree, kind: type) -> list[Any]:
    """The states of type `kind` in the state of an optimizer, however deep in chains, masks and groups they are."""
    found = jax.tree.leaves(opt_state, is_leaf=lambda each: isinstance(each, kind))
    return [each for each in found if isinstance(each, kind)]


def evaluated_elsewhere(opt_state: Tree) -> bool:
    """Whether the weights for evaluation differ from those that are trained."""
    return bool(states_of(opt_state, contrib.ScheduleFreeState))


def evaluated(params: Tree, opt_state: Tree) -> Tree:
    """The weights for evaluation, export and files. It can be traced.

    A schedule-free optimizer takes gradients at a point y between an average x and its own iterate z. The weights of a
    stage are y; the weights for evaluation are x. With any other optimizer, x and y are the same.

    Arguments:
        params: the weights of the stage.
        opt_state: the state of its optimizer. Only some weights may have optax.contrib.schedule_free.
    """
    masked = lambda leaf: isinstance(leaf, optax.MaskedNode)  # noqa: E731  # a weight that another optimizer updates
    for state in states_of(opt_state, contrib.ScheduleFreeState):
        z = jax.tree.map(lambda z, y: y if masked(z) else z, state.z, params, is_leaf=masked)
        x = contrib.schedule_free_eval_params(state._replace(z=z), params)
        params = jax.tree.map(lambda z, x, y: y if masked(z) else x.astype(y.dtype), state.z, x, params, is_leaf=masked)
    return params


def average(params: Tree, opt_state: Tree) -> Tree:
    """The average of the weights, in the dtypes of the weights. It can be traced."""
    return jax.tree.map(lambda p, a: a.astype(p.dtype), params, layer(opt_state, Averaged).average)
