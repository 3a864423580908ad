"""What a guarded stage (fdg_jax.stages.update) does about a NaN or an infinity.

A batch that spoils a gradient often spoils the running statistics, too, and no later update would mend them. So a guard
refuses new statistics as well. After a refused update the weights, the moments and their counts are unchanged. The
counts of learning-rate schedules go on: every update of a stage, refused or not, has the learning rate that the log
shows for its batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fdg_jax.stages.functions import loss_of, metrics_of

Tree = Any


def guard_statistics(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A stage's forward pass that keeps the old statistics where the new ones are not finite."""

    def guarded(params, extra, x, labels=None):
        messages, changed, closure = forward(params, extra, x, labels)
        kept = {name: value for name, value in changed.items() if name != "rng"}
        old, new = jax.tree.leaves({name: extra[name] for name in kept}), jax.tree.leaves(kept)
        if [(a.shape, a.dtype) for a in old] == [(a.shape, a.dtype) for a in new]:  # else it is refused later
            kept = jax.tree.unflatten(jax.tree.structure(kept), select(as_finite(new, old), new, old))
        return messages, {**changed, **kept}, closure

    return guarded


@jax.custom_vjp
def lost_with_its_gradient(loss: jax.Array) -> jax.Array:
    """Returns the loss. If the loss is not finite, all its gradients become NaN, so that every stage refuses them. For
    example, the cross-entropy of a label outside the classes is NaN, but its gradients are finite."""
    return loss


lost_with_its_gradient.defvjp(
    lambda loss: (loss, jnp.isfinite(loss)), lambda finite, dy: (jnp.where(finite, dy, jnp.nan),)
)


def guard_loss(report: Callable[..., Tree]) -> Callable[..., Tree]:
    """The user's loss(outputs, labels[, key]) -> loss or (loss, metrics), for guarded stages."""

    def guarded(*batch):
        told = report(*batch)
        value = lost_with_its_gradient(loss_of(told))
        return value if told is loss_of(told) else (value, metrics_of(told))

    return guarded


def after_refusal(before: Tree, after: Tree) -> Tree:
    """The state of an optimizer or a correction after a refused update: `before`, with the counts of schedules
    advanced.

    A count is a single integer. A count beside arrays in a named tuple or a dictionary, such as Adam's, says how many
    gradients these arrays average, so it keeps its value. MultiSteps keeps its whole state, so that it averages only
    good gradients.

    Arguments:
        before: the state before the update.
        after: the state that the update would have made.
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
    """Whether a leaf is a single integer."""
    return getattr(leaf, "ndim", None) == 0 and jnp.issubdtype(leaf.dtype, jnp.integer)


def all_finite(tree: Tree) -> jax.Array:
    """Whether all floating-point numbers of a tree are finite: a scalar bool."""
    found = [jnp.all(jnp.isfinite(leaf)) for leaf in floats(tree)]
    return jnp.all(jnp.stack(found)) if found else jnp.asarray(True)


def as_finite(after: Tree, before: Tree) -> jax.Array:
    """Whether a tree is finite wherever `before`, of the same structure, is finite: a scalar bool."""
    marks = jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(b), a, 0), *(floats(tree) for tree in (after, before)))
    return all_finite(marks)


def floats(tree: Tree) -> list[jax.Array]:
    """The floating-point arrays of a tree."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def select(condition: jax.Array, yes: Tree, no: Tree) -> Tree:
    """`yes` if the condition holds and else `no`: two trees of arrays."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
