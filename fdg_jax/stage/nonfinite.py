"""A guard: updates with a NaN or an infinity in the gradients are refused, and the first one is recorded.

The host reads losses late, so it notices a non-finite gradient late: by then, several updates have used the weights
that it spoilt. So the guard is inside the update, where nobody has to wait for it. What to do about a refused update is
decided when the host reads `bad`.

A batch that spoils a gradient often spoils the running statistics of its forward passes, too, which no update would
ever mend. So these are refused as well.

A refused update leaves the weights, the moments and all that counts them as they are. The counts of learning-rate
schedules go on: every update of a stage, refused or not, has the learning rate of its batch, as the log tells it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fdg_jax.stage.functions import Functions, StageState, loss_of, metrics_of

Tree = Any


class Guarded(NamedTuple):
    """The state of a guarded optimizer.

    inner: the state of the optimizer itself.
    updates: how many updates were asked for, refused ones included.
    bad: the number (from 1) of the first refused update; 0 if there is none.
    refused: how many were refused.
    """

    inner: Tree
    updates: jax.Array  # int32
    bad: jax.Array  # int32
    refused: jax.Array  # int32


def guard_updates(functions: Functions, state: StageState) -> tuple[Functions, StageState]:
    """Guards the updates of a stage, and what its forward passes remember.

    Arguments:
        functions, state: the stage's.

    Returns: (functions whose update leaves weights and moments unchanged if a gradient is not finite, and whose
        forward pass leaves statistics unchanged if the new ones are not finite; the state).
    """

    def forward(params, extra, x, labels=None):
        messages, changed, closure = functions.forward(params, extra, x, labels)
        kept = {name: value for name, value in changed.items() if name != "rng"}
        old, new = jax.tree.leaves({name: extra[name] for name in kept}), jax.tree.leaves(kept)
        if [(a.shape, a.dtype) for a in old] == [(a.shape, a.dtype) for a in new]:  # else refused in a sentence, later
            kept = jax.tree.unflatten(jax.tree.structure(kept), select(as_finite(new, old), new, old))
        return messages, {**changed, **kept}, closure

    def update(params, opt_state, grads):
        good, number = all_finite(grads), opt_state.updates + 1
        moved = functions.update(params, opt_state.inner, grads)
        # Computed in any case and then selected: so it is compiled, and rounded, as without a guard.
        params, inner = select(good, moved, (params, after_refusal(opt_state.inner, moved[1])))
        first = jnp.where((opt_state.bad == 0) & ~good, number, opt_state.bad)
        return params, Guarded(inner, number, first, opt_state.refused + (~good).astype(jnp.int32))

    opt_state = Guarded(state.opt_state, *[jnp.zeros((), jnp.int32) for _ in range(3)])
    return functions._replace(forward=forward, update=update), state._replace(opt_state=opt_state)


@jax.custom_vjp
def lost_with_its_gradient(loss: jax.Array) -> jax.Array:
    """A loss whose gradients are all NaN where it is not finite, so that every stage refuses them. By itself a
    cross-entropy for a label outside the classes, for one, is NaN and has finite gradients."""
    return loss


lost_with_its_gradient.defvjp(
    lambda loss: (loss, jnp.isfinite(loss)), lambda finite, dy: (jnp.where(finite, dy, jnp.nan),)
)


def guard_loss(report: Callable[[Tree, Tree], Tree]) -> Callable[[Tree, Tree], Tree]:
    """The user's loss(outputs, labels) -> loss or (loss, metrics), for guarded stages."""

    def guarded(outputs, labels):
        told = report(outputs, labels)
        value = lost_with_its_gradient(loss_of(told))
        return value if told is loss_of(told) else (value, metrics_of(told))

    return guarded


def after_refusal(before: Tree, after: Tree) -> Tree:
    """The state of an optimizer or a correction after a refused update: `before`, but its schedules' counts go on.

    A count is a single integer. One that stands beside arrays in a named tuple or a dictionary, as Adam's does, counts
    what these have averaged, and stays. MultiSteps waits for as many good gradients as ever, so all of it stays.

    Arguments:
        before: the state before the update.
        after: the state if the update had been made.
    """
    if hasattr(before, "dtype"):
        return after if counts(before) else before
    if isinstance(before, optax.MultiStepsState):
        return before
    fields, structure = jax.tree.flatten(before, is_leaf=lambda each: each is not before)
    # A field that is a tuple is a state of its own: that of a chain's member or of a wrapped optimizer.
    averages = any(leaf.ndim for field in fields if not isinstance(field, tuple) for leaf in floats(field))
    stays = averages and type(before) not in (tuple, list)
    pairs = zip(fields, structure.flatten_up_to(after), strict=True)
    return structure.unflatten([old if stays and counts(old) else after_refusal(old, new) for old, new in pairs])


def counts(leaf: Any) -> bool:
    """Whether this is a single integer."""
    return getattr(leaf, "ndim", None) == 0 and jnp.issubdtype(leaf.dtype, jnp.integer)


def was_made(before: Tree, after: Tree) -> jax.Array | None:
    """Whether an update was made and not refused, by the optimizer's states around it; None without a guard."""
    return after.refused == before.refused if isinstance(after, Guarded) else None


def all_finite(tree: Tree) -> jax.Array:
    """Whether all floating-point numbers of a tree are finite: a scalar bool."""
    found = [jnp.all(jnp.isfinite(leaf)) for leaf in floats(tree)]
    return jnp.all(jnp.stack(found)) if found else jnp.asarray(True)


def as_finite(after: Tree, before: Tree) -> jax.Array:
    """Whether a tree has no NaN and no infinity but where `before`, of the same structure, had one: a scalar bool."""
    marks = jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(b), a, 0), *(floats(tree) for tree in (after, before)))
    return all_finite(marks)


def floats(tree: Tree) -> list[jax.Array]:
    """The floating-point arrays of a tree."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def select(condition: jax.Array, yes: Tree, no: Tree) -> Tree:
    """`yes` if the condition holds and else `no`: two trees of arrays."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
