"""Finds options without effect, such as a factor on gradients that the optimizer divides by their own size."""

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from fdg_jax.checks.plan import Plan
from fdg_jax.config import Config
from fdg_jax.errors import NoEffect
from fdg_jax.machine import programs
from fdg_jax.options.fields import said

Tree = Any
LENGTH = 1e-2  # length of the gradient, shorter than usual clipping lengths
STEPS = 3  # a warm-up may begin with a learning rate of 0
NEAR = 0.05  # relative to the update: Adam's epsilon and rounding change it by less, and SGD's update is halved
NEUTRAL = {"beta": 1.0, "gate_decay": 0.0, "scale": 1.0}  # factors on gradients: name -> the value without effect


def factors(plan: Plan) -> dict[str, Any]:
    """The factors on gradients that differ from their neutral value: name -> value."""
    options = {name: value for _, own in plan.corrections for name, value in own.items()} | plan.stage_options
    return {name: options[name] for name, neutral in NEUTRAL.items() if options.get(name, neutral) != neutral}


def lines(plan: Plan, momentum: float | None, divides: Callable[[], bool]) -> Iterator[str]:
    """A warning of a sentence or two for each option without effect.

    Arguments:
        momentum: the optimizer's momentum; None if it is not known.
        divides: () -> whether the optimizer divides a gradient by its own size; called only if this matters.
    """
    names, used = plan.corrected_by, factors(plan)
    if not plan.staleness:
        way_out = f"Use {said('K', 2)} or more and a method with delayed gradients, such as fdg"
        late = [*(("correct", name) for name in names), *((name, used[name]) for name in used if name == "beta")]
        yield from (f"{said(*each)}: no gradient is late, so this option does nothing. {way_out}." for each in late)
        names, used = (), {name: used[name] for name in used if name == "scale" and plan.schedule.K > 1}
    if "beta" in used and plan.staleness and not any(plan.schedule.delays[:-1]):
        yield f"{said('beta', used['beta'])}: only stage K is late, where beta's factor is 1. Use more stages."
    if "rate" in names and plan.staleness <= 1:
        fact = f"the largest staleness is {plan.staleness:g}, so rate divides by 1"
        yield f"{said('correct', 'rate')}: {fact}. Leave it out, or use more stages."
    if momentum == 0 and "anticipate" in names and prediction(plan) in ("spike", "nesterov"):
        fact = "anticipate predicts weights from the momentum, so without momentum it predicts no change"
        yield f"{said('momentum', momentum)}: {fact}. Use {said('correct', 'rate')}."
    sized = [*used.items(), *((("correct", "gap_aware"),) if "gap_aware" in names else ())]
    if sized and divides():
        fact = "the optimizer divides each gradient by its typical size, so scaling gradients has almost no effect"
        way_out = f"Use SGD, or {said('correct', 'rate')}, which acts after the optimizer"
        yield from (f"{said(name, value)}: {fact}. {way_out}." for name, value in sized)


def prediction(plan: Plan) -> str:
    """How `anticipate` predicts; "" without it."""
    return next((own["prediction"] for kind, own in plan.corrections if kind.name == "anticipate"), "")


def of_run(o: Config, plan: Plan, rates: np.ndarray) -> Iterator[str]:
    """A warning for each option that works differently from its name. rates: [batches of the run], the learning rate of
    each."""
    how = prediction(plan) if plan.staleness else ""
    if how and o.momentum == 0 and how not in ("spike", "nesterov"):
        fact = "without momentum this prediction lowers the largest stable learning rate"
        where = " where the staleness is small" if how == "last" else ""
        yield f"{said('prediction', how)}: {fact}{where}. Use {said('momentum', 0.9)}, or {said('correct', 'rate')}."
    if how and o.lr_schedule == "paper":
        fact = "after each division of the learning rate by 10, the next prediction goes 10 times too far"
        yield f"{said('correct', 'anticipate')}: {fact}. {said('lr_schedule', 'cosine')} has no drops."
    if o.clip_norm and o.K > 1 and (factors(plan) or plan.corrected_by):
        fact = "each stage clips its own gradient, so the result depends on K and the split"
        yield f"{said('clip_norm', o.clip_norm)}: {fact}. Compare with {said('method', 'bp')} at equal K and split."
    if o.clip_norm and o.K > 1 and o.method in ("bp", "gpipe"):
        fact = f"with {said('K', o.K)} each stage clips its own gradient; the whole network's gradient is not clipped"
        yield f"{said('clip_norm', o.clip_norm)}: {fact}. Use {said('method', 'bp')} {said('K', 1)} for that."
    warms_up = o.warmup_steps or o.warmup == "on"
    if warms_up and (highest := float(rates.max())) < 0.999999 * o.learning_rate:  # the rates are float32
        flag = said("warmup_steps", o.warmup_steps) if o.warmup_steps else said("warmup", o.warmup)
        fact = f"the warm-up does not end within the run of {len(rates)} batches, so the learning rate only reaches"
        yield f"{flag}: {fact} {highest:.3g} of {o.learning_rate:g}. Use a shorter warm-up, or a longer run."


def warn(plan: Plan, momentum: float | None, optimizer: optax.GradientTransformation, params: Tree) -> None:
    """Issues the warning `NoEffect` for each option of a pipeline that has no effect.

    Arguments:
        optimizer: stage 1's optax chain.
        params: the parameters of stage 1, or their shapes.
    """
    for line in lines(plan, momentum, lambda: not silenced() and divides_by_size(optimizer, params)):
        warnings.warn(line, NoEffect, stacklevel=4)


def silenced() -> bool:
    """Whether Python would hide the warning, so that the trial, which compiles for a second, can be skipped."""
    actions = (action for action, _, category, *_ in warnings.filters if issubclass(NoEffect, category))
    return next(actions, "default") == "ignore"


def divides_by_size(optimizer: optax.GradientTransformation, params: Tree) -> bool:
    """Whether halving a gradient leaves the update nearly the same, as with Adam.

    The trial takes three steps with small arrays that have the axes and names of the parameters. One trial has zeros as
    parameters, where coupled weight decay adds nothing. Another has ones, where clipping in proportion to parameters
    does not act. The trials miss some optimizers: LARS, Adagrad, and optimizers that update only every fourth step.
    Returns False also if the optimizer fails on these arrays.
    """
    small = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct([min(n, 2) for n in leaf.shape], leaf.dtype), params)
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(small))

    @programs.jit
    def last_update(weights, length):
        """The update of the last step as a vector, for a gradient of that length, with all parameters equal to
        `weights`."""
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
    except Exception:  # the user's optimizer works for the true shapes only
        return False
    norm = np.linalg.norm
    return all(norm(whole) > 0 and norm(whole - half) < NEAR * norm(whole) for whole, half in pairs)
