"""Says where FDG's beta does nothing: in front of an optimizer that divides a gradient by its own size."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import Kind
from fdg_jax.errors import NoEffect

Tree = Any
LENGTH = 1e-2  # of the gradient: shorter than what is usually clipped
STEPS = 3  # a warm-up may begin with a learning rate of 0
NEAR = 0.05  # of the update's length: Adam's epsilon and a first step's rounding change it by less, SGD's is halved


def warn_of_beta(
    asked: Sequence[tuple[Kind, Mapping[str, Any]]], optimizer: optax.GradientTransformation, params: Tree
) -> None:
    """Gives the warning `NoEffect` where the gradient is shrunk by beta, and stage 1's optimizer cancels that.

    Arguments:
        asked: the corrections with their options.
        optimizer: stage 1's optax chain.
        params: arrays of stage 1.
    """
    beta = next((options["beta"] for kind, options in asked if kind.name == "shrink"), 1.0)
    if beta != 1.0 and not silenced() and divides_by_size(optimizer, params):
        fact = "the optimizer divides a gradient by its own size, so a constant factor cancels (nearly)"
        way_out = "Use SGD where it is to matter, or correct='rate', which stands behind the optimizer."
        warnings.warn(f"beta={beta:g}: {fact}. {way_out}", NoEffect, stacklevel=4)


def silenced() -> bool:
    """Whether the warning would not be shown, so that the trial, a second of compiling, can be left out."""
    actions = (action for action, _, category, *_ in warnings.filters if issubclass(NoEffect, category))
    return next(actions, "default") == "ignore"


def divides_by_size(optimizer: optax.GradientTransformation, params: Tree) -> bool:
    """Whether half of a gradient makes nearly the same update, as with Adam.

    It is tried for three steps, with small arrays in place of the parameters, which have their axes and names: with
    zeros, where coupled weight decay adds nothing, and with ones, where clipping in proportion to the parameters leaves
    the gradient alone. So some are missed: LARS, Adagrad, whatever updates every fourth step only. False also where the
    optimizer cannot be asked so.
    """
    small = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct([min(n, 2) for n in leaf.shape], leaf.dtype), params)
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(small))

    def full(value):
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, value, leaf.dtype), small)

    def last_update(trial):
        weights, length = trial
        filled, grads = full(weights), full(length / count**0.5)

        def step(state, _):
            updates, state = optimizer.update(grads, state, filled)
            return state, updates

        _, updates = jax.lax.scan(step, optimizer.init(filled), length=STEPS)
        return jax.tree.map(lambda leaf: leaf[-1], updates)

    def changes():
        weights, lengths = jnp.asarray([0.0, 0.0, 1.0, 1.0]), LENGTH * jnp.asarray([1.0, 0.5, 1.0, 0.5])
        updates = jax.lax.map(last_update, (weights, lengths))
        found = []
        for at in (0, 2):
            whole, half = (jax.tree.map(lambda leaf, at=at: leaf[at], updates) for at in (at, at + 1))
            found.append((optax.tree.norm(whole), optax.tree.norm(jax.tree.map(jnp.subtract, whole, half))))
        return found

    try:
        found = jax.jit(changes)()
    except Exception:  # a chain of the user's that is made for the true shapes only
        return False
    return all(whole > 0 and change < NEAR * whole for whole, change in found)
