"""Finds the stage in which a batch first becomes NaN or infinite."""

from collections.abc import Sequence
from typing import Any, NamedTuple

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


WHAT = ("", "weights", "outputs", "loss")  # by the number that `look` returns


def first_unsound(stages: Sequence[tuple[Functions, StageState, Place]], x: Tree, labels: Tree) -> Unsound | None:
    """Finds the first stage with non-finite weights or outputs. It waits for every stage, which is fine for a rare
    case.

    Arguments:
        stages: (functions, state, place) of each stage.
        x, labels: a batch, as stage 1 takes it. It is run in training mode with the newest weights.

    Returns: the stage; None if everything is finite.
    """
    for k, (functions, state, place) in enumerate(stages, 1):
        number, x = look(functions, state, place, x, labels)
        if number:
            return Unsound(k, WHAT[number])
    return None


def look(functions: Functions, state: StageState, place: Place, x: Tree, labels: Tree) -> tuple[int, Tree]:
    """(what of a stage is not finite, as a number of `WHAT`, 0 for nothing; what it gives to the next stage)."""
    if not programs.jit(all_finite)(state.params):
        return WHAT.index("weights"), None
    run = programs.jit(lambda params, extra, x, labels: functions.forward(params, extra, x, labels)[0])
    messages = run(state.params, state.extra, place.put_batch(x), place.put_batch(labels))
    if programs.jit(all_finite)(messages):
        return 0, messages.get("x")
    return WHAT.index("loss" if "loss" in messages else "outputs"), None
