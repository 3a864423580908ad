"""Finds the stage in which a batch first becomes NaN or infinite."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fdg_jax.machine import programs
from fdg_jax.stage.functions import Functions, StageState
from fdg_jax.stage.nonfinite import all_finite
from fdg_jax.transport.devices import Place

Tree = Any


class Unsound(NamedTuple):
    """Where the first non-finite number is.

    k: the stage.
    what: "weights", "outputs" or "loss".
    """

    k: int
    what: str


def first_unsound(stages: Sequence[tuple[Functions, StageState, Place]], x: Tree, labels: Tree) -> Unsound | None:
    """Finds the first stage with non-finite weights or outputs. It waits for every stage, which is fine for a rare
    case.

    Arguments:
        stages: (functions, state, place) of each stage.
        x, labels: a batch, as stage 1 takes it. It is run in training mode with the newest weights.

    Returns: the stage; None if everything is finite.
    """
    for k, (functions, state, place) in enumerate(stages, 1):
        if not jax.jit(all_finite)(state.params):
            return Unsound(k, "weights")
        run = programs.jit(
            lambda params, extra, x, labels, run=functions.forward: run(params, extra, x, labels)[0],
            place.device.platform,
            reductions=False,
        )
        messages = run(state.params, state.extra, place.put_batch(x), place.put_batch(labels))
        if not jax.jit(all_finite)(messages):
            return Unsound(k, "loss" if "loss" in messages else "outputs")
        x = messages.get("x")
    return None
