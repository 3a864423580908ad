"""An update that applies no gradient with a NaN or an infinity in it, and remembers the first one.

Asynchronous training notices such a gradient late: the host reads numbers behind the devices, and by then several
updates have used what it spoilt. So it is stopped where it arises, inside the update, without anybody waiting; what to
do about it is decided when the host reads `bad`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdg_jax.stage.functions import Functions, StageState

Tree = Any


class Guarded(NamedTuple):
    """updates: made or refused. bad: the number (from 1) of the first that was refused, 0 if none; refused: how many.

    inner: the state of the optimizer that is guarded.
    """

    inner: Tree
    updates: jax.Array  # int32
    bad: jax.Array  # int32
    refused: jax.Array  # int32


def guarded(functions: Functions, state: StageState) -> tuple[Functions, StageState]:
    """A stage whose parameters and optimizer do not move by gradients that are not finite."""

    def update(params, opt_state, grads):
        good, number = finite(grads), opt_state.updates + 1
        moved = functions.update(params, opt_state.inner, grads)
        # What has been computed is chosen, so that it is computed (and rounded) as it is without a guard.
        params, inner = where(good, moved, (params, opt_state.inner))
        first = jnp.where((opt_state.bad == 0) & ~good, number, opt_state.bad)
        return params, Guarded(inner, number, first, opt_state.refused + (~good).astype(jnp.int32))

    opt_state = Guarded(state.opt_state, *[jnp.zeros((), jnp.int32) for _ in range(3)])
    return functions._replace(update=update), state._replace(opt_state=opt_state)


def finite(tree: Tree) -> jax.Array:
    """Whether all floating-point numbers of a tree are finite: a scalar bool."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])) if leaves else jnp.asarray(True)


def refused(state: Mapping[str, Any]) -> tuple[int, ...]:
    """Of a pipeline's state(): per stage the number of the first update that was refused, 0 if none."""
    found = {int(re.findall(r"\d+", name)[0]): value for name, value in state.items() if name.endswith("opt_state.bad")}
    return tuple(int(found[k]) for k in sorted(found))


def told(bad: Sequence[int]) -> str:
    """In words the first of the updates that were refused, and of several of that batch the highest stage's, because
    cotangents go down."""
    number, k = min((number, -k) for k, number in enumerate(bad, 1) if number)
    return f"stage k={-k} got a gradient that is not finite, for its update {number:,}"


def where(condition: jax.Array, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
