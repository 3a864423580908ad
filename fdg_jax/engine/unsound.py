"""Finds the stage in which a batch first becomes NaN or infinite."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fdg_jax.machine import programs
from fdg_jax.stage.functions import Functions, StageState
from fdg_jax.stage.nonfinite import finite
from fdg_jax.transport.devices import Place

Tree = Any


class Unsound(NamedTuple):
    """Where a number stops being one: `what` of stage k (its weights, its outputs, the loss)."""

    k: int
    what: str


def first_unsound(stages: Sequence[tuple[Functions, StageState, Place]], x: Tree, labels: Tree) -> Unsound | None:
    """The first stage that gives something that is not finite for the inputs x of stage 1, in training mode and with
    the weights of now, or that has such weights; None where all is sound. Waits for every stage: for the rare case."""
    for k, (functions, state, place) in enumerate(stages, 1):
        if not jax.jit(finite)(state.params):
            return Unsound(k, "weights")
        run = programs.jit(
            lambda params, extra, x, labels, run=functions.forward: run(params, extra, x, labels)[0],
            place.device.platform,
            reductions=False,
        )
        messages = run(state.params, state.extra, place.batch(x), place.batch(labels))
        if not jax.jit(finite)(messages):
            return Unsound(k, "loss" if "loss" in messages else "outputs")
        x = messages.get("x")
    return None
