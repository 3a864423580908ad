"""Finds the state of the user's optimizer in the state of a stage, and sets hyperparameters in it.

A compiled update holds the numbers that an optimizer was made with. `optax.inject_hyperparams` keeps them in the
optimizer's state instead, where they can be changed between two updates without compiling anything again.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fdg_jax.corrections.interface import OF_OPTIMIZER
from fdg_jax.errors import BadInput
from fdg_jax.stages.update import states_of, unwrapped

Tree = Any
Injected = optax.InjectStatefulHyperparamsState
WAY_OUT = "Give the pipeline optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3), say"


def of_user(opt_state: Tree) -> Tree:
    """The state of the user's optax chain, without the states that a correction (`Correction.around`) and the update
    rule add."""
    chain = unwrapped(opt_state)
    named = lambda each: isinstance(each, dict) and each.keys() == {OF_OPTIMIZER}  # noqa: E731
    found = [each for each in jax.tree.leaves(chain, is_leaf=named) if named(each)]
    return found[0][OF_OPTIMIZER] if found else chain[1]


def with_values(opt_state: Tree, values: Mapping[str, Any], k: int) -> Tree:
    """The state of stage k's optimizer with new values of injected hyperparameters, wherever they are in the state.

    Raises:
        BadInput: the optimizer has no such hyperparameter, it follows a schedule, or a value has another shape.
    """
    injected = states_of(opt_state, Injected)
    has = sorted({name for state in injected for name in state.hyperparams})
    for name in values:
        if name not in has:
            known = f"(it has: {', '.join(has) or 'none'})"
            raise BadInput(f"the optimizer of stage k={k} has no injected hyperparameter {name} {known}. {WAY_OUT}.")
        if any(name in state.hyperparams_states for state in injected):
            fact = f"{name} of stage k={k} follows a schedule, which sets its value at every update"
            raise BadInput(f"{fact}. {WAY_OUT}: a number keeps its value until it is set.")

    def changed(state: Tree) -> Tree:
        if not isinstance(state, Injected):
            return state
        new = {name: filled(name, old, values[name]) for name, old in state.hyperparams.items() if name in values}
        return state._replace(hyperparams={**state.hyperparams, **new})

    return jax.tree.map(changed, opt_state, is_leaf=lambda each: isinstance(each, Injected))


def filled(name: str, old: Any, value: Any) -> jax.Array:
    """A value in the shape and dtype of the one that it replaces. Raises BadInput if the value has another shape."""
    try:
        return jnp.full_like(old, value)
    except (TypeError, ValueError):
        raise BadInput(f"{name}={value!r} does not fit {old.dtype}{list(old.shape)}. Give one number.") from None
