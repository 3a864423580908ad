"""Finds the stage in which a batch first becomes NaN or infinite."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fdg_jax.machine import programs
from fdg_jax.stage.functions import StageState
from fdg_jax.stage.nonfinite import all_finite
from fdg_jax.transport.devices import Place

Tree = Any


class Nonfinite(NamedTuple):
    """Where the first non-finite number is.

    k: the stage.
    what: "weights", "outputs" or "loss".
    """

    k: int
    what: str


WHAT = ("", "weights", "outputs", "loss")  # by the number that `look` returns


def look(forward: Callable, state: StageState, place: Place, x: Tree, labels: Tree) -> tuple[int, Tree]:
    """Runs a batch through a stage in training mode with its newest weights, and waits for it.

    Arguments:
        forward: the stage's compiled forward pass.
        state, place: of the stage.
        x, labels: what the stage takes.

    Returns: (which part of the stage is not finite, as a number of `WHAT`, 0 for none; its outputs).
    """
    finite = programs.jit(all_finite)
    if not finite(state.params):
        return WHAT.index("weights"), None
    messages, *_ = forward(state.params, state.extra, place.put_batch(x), place.put_batch(labels))
    if finite(messages):
        return 0, messages.get("x")
    return WHAT.index("loss" if "loss" in messages else "outputs"), None
