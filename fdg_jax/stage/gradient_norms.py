"""The norm of every stage's gradient, remembered by the update that uses it, so that nobody has to wait for it.

In a pipeline `optax.clip_by_global_norm` clips by the norm of one stage's gradient: a stage does not wait for the
others, so it cannot know theirs. The norms show what a threshold for each stage would have to be.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdg_jax.stage.functions import Functions, StageState
from fdg_jax.stage.nonfinite import Guarded, guard_updates

Tree = Any


class Measured(NamedTuple):
    """The state of an optimizer whose gradients are measured.

    inner: the state of the optimizer itself.
    norm: of the newest gradient that the stage was updated by, float32; 0 before the first.
    """

    inner: Tree
    norm: jax.Array  # float32


def measure_gradients(functions: Functions, state: StageState) -> tuple[Functions, StageState]:
    """Makes the updates of a stage remember the norm of their gradient, before the optimizer and beta change it."""

    def update(params, opt_state, grads):
        params, inner = functions.update(params, opt_state.inner, grads)
        squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(grads)]
        return params, Measured(inner, jnp.sqrt(sum(squares, jnp.float32(0))))

    return functions._replace(update=update), state._replace(opt_state=Measured(state.opt_state, jnp.float32(0)))


def watch_updates(functions: Functions, state: StageState, guard: bool, norms: bool) -> tuple[Functions, StageState]:
    """A stage that measures its gradients (`norms`) and refuses those that are not finite (`guard`)."""
    functions, state = measure_gradients(functions, state) if norms else (functions, state)
    return guard_updates(functions, state) if guard else (functions, state)


def first_refused(opt_state: Tree) -> Any:
    """The number of the first update that was refused, 0 if none; None of a stage without a guard."""
    return opt_state.bad if isinstance(opt_state, Guarded) else None


def newest_norm(opt_state: Tree) -> Any:
    """The norm of the newest gradient; None of a stage whose gradients are not measured."""
    inner = opt_state.inner if isinstance(opt_state, Guarded) else opt_state
    return inner.norm if isinstance(inner, Measured) else None
