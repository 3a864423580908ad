"""Says where FDG's beta does nothing: in front of an optimizer that divides a gradient by its own size."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import Kind
from fdg_jax.errors import NoEffect

Tree = Any
LENGTH, NEAR, STEPS = 1e-2, 0.05, 3  # three steps, as a warm-up may begin with a learning rate of 0


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
    if beta != 1.0 and divides_by_size(optimizer, params):
        fact = "the optimizer divides a gradient by its own size, so a constant factor cancels (nearly)"
        way_out = "Use SGD where it is to matter, or correct='rate', which stands behind the optimizer."
        warnings.warn(f"beta={beta:g}: {fact}. {way_out}", NoEffect, stacklevel=4)


def divides_by_size(optimizer: optax.GradientTransformation, params: Tree) -> bool:
    """Whether half of a gradient makes nearly the same update, as with Adam.

    It is tried with small arrays in place of the parameters, which have their axes and names; the gradient is shorter
    than what is usually clipped. False where the optimizer cannot be asked so.
    """
    small = jax.tree.map(lambda leaf: jnp.zeros([min(n, 2) for n in leaf.shape], leaf.dtype), params)
    count = sum(leaf.size for leaf in jax.tree.leaves(small))

    def updates(length):
        grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, length / count**0.5), small)
        state = optimizer.init(small)
        for _ in range(STEPS):
            found, state = optimizer.update(grads, state, small)
        return found

    def lengths():
        whole, half = updates(LENGTH), updates(LENGTH / 2)
        return optax.tree.norm(whole), optax.tree.norm(jax.tree.map(jnp.subtract, whole, half))

    try:
        whole, change = jax.jit(lengths)()
    except Exception:  # a chain of the user's that is made for the true shapes only
        return False
    return bool(whole > 0 and change < NEAR * whole)
