"""Says where an option does nothing: a factor on gradients that the optimizer divides by their own size, for one."""

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from fdg_jax.corrections.interface import Kind
from fdg_jax.errors import NoEffect
from fdg_jax.machine import programs

Tree = Any
CANCELS = "divides a gradient by its own size, so a constant factor cancels (nearly)"
LENGTH = 1e-2  # of the gradient: shorter than what is usually clipped
STEPS = 3  # a warm-up may begin with a learning rate of 0
NEAR = 0.05  # of the update's length: Adam's epsilon and a first step's rounding change it by less, SGD's is halved


def warn(
    asked: Sequence[tuple[Kind, Mapping[str, Any]]],
    staleness: float,
    momentum: float | None,
    optimizer: optax.GradientTransformation,
    params: Tree,
) -> None:
    """Gives the warning `NoEffect` for each option of a correction that does nothing here.

    Arguments:
        asked: the corrections with their options.
        staleness: the largest of any stage, on average.
        momentum: what the pipeline was told of the optimizer.
        optimizer: stage 1's optax chain.
        params: the parameters of stage 1, or their shapes.
    """
    names = [kind.name for kind, _ in asked]
    if not staleness:
        used = [f"correct={name!r}" for name in names if name not in ("none", "shrink")]
        used += [f"beta={options['beta']:g}" for kind, options in asked if options.get("beta", 1) != 1]
        for what in used:
            way_out = "Use K=2 or more and a method with delayed gradients, such as fdg."
            warnings.warn(f"{what}: no gradient is late, so it does nothing. {way_out}", NoEffect, stacklevel=4)
        return
    if "rate" in names and staleness <= 1:
        fact = divides_by_1(staleness)
        warnings.warn(f"correct='rate': {fact}. Leave it out, or use more stages.", NoEffect, stacklevel=4)
    given = {(kind.name, name): value for kind, options in asked for name, value in options.items()}
    if momentum == 0 and given.get(("anticipate", "prediction")) in ("spike", "nesterov"):
        fact = "anticipate looks ahead by the momentum, and without any it looks no update ahead"
        warnings.warn(f"momentum=0: {fact}. Use correct='rate'.", NoEffect, stacklevel=4)
    neutral = {("shrink", "beta"): 1.0, ("cosine", "gate_decay"): 0.0}
    used = [f"{p[1]}={given[p]:g}" for p, value in neutral.items() if given.get(p, value) != value]
    used += ["correct='gap_aware'"] if "gap_aware" in names else []
    if used and not silenced() and divides_by_size(optimizer, params):
        way_out = "Use SGD where it is to matter, or correct='rate', which stands behind the optimizer."
        for what in used:
            warnings.warn(f"{what}: the optimizer {CANCELS}. {way_out}", NoEffect, stacklevel=4)


def divides_by_1(staleness: float) -> str:
    """Why `rate` does nothing at that staleness, which is 1 at most."""
    return f"no stage is late by more than {staleness:g} updates, so rate divides by 1"


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

    @programs.jit
    def last_update(weights, length):
        """The update of the last step as a vector, by a gradient of that length, all parameters being `weights`."""
        filled, grads = (
            jax.tree.map(partial(jnp.full_like, fill_value=value), small) for value in (weights, length / count**0.5)
        )

        def step(state, _):
            updates, state = optimizer.update(grads, state, filled)
            return state, updates

        _, updates = jax.lax.scan(step, optimizer.init(filled), length=STEPS)
        return ravel_pytree(jax.tree.map(lambda leaf: leaf[-1], updates))[0]

    try:
        pairs = [(last_update(weights, LENGTH), last_update(weights, LENGTH / 2)) for weights in (0.0, 1.0)]
    except Exception:  # a chain of the user's that is made for the true shapes only
        return False
    norm = np.linalg.norm
    return all(norm(whole) > 0 and norm(whole - half) < NEAR * norm(whole) for whole, half in pairs)
