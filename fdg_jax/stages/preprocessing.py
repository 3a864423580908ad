"""Makes programs of a user's `preprocess` function, which transforms each batch on its way into the pipeline.

A function of inputs and labels returns both, but inputs and labels are needed on different devices, or even in
different processes. So the function runs on each of the two devices, as a program that returns only what is needed
there. XLA leaves out the rest of the function, and no message is added.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fdg_jax.errors import BadInput
from fdg_jax.stages.shapes import describe
from fdg_jax.stages.tracing import trace_or_refuse

Tree = Any


class Preprocess(NamedTuple):
    """A user's `preprocess`, as two functions (inputs, labels, step), one for stage 1 and one for the loss. Both can be
    traced.

    inputs: makes what stage 1 takes.
    labels: makes the labels of the loss. None: the labels stay as they are, and `inputs` does not look at them.
    """

    inputs: Callable[[Tree, Tree, Any], Tree]
    labels: Callable[[Tree, Tree, Any], Tree] | None = None


def preprocess_of(function: Callable[..., Tree], with_labels: bool) -> Preprocess:
    """Makes a `Preprocess`. with_labels: whether the function is (inputs, labels, step) -> (inputs, labels); otherwise
    it is (inputs, step) -> inputs."""
    if not with_labels:
        return Preprocess(lambda inputs, _, step: function(inputs, step))

    def both(*batch):
        made = function(*batch)
        if not isinstance(made, tuple | list) or len(made) != 2:
            fact = f"preprocess(inputs, labels, step) has returned {describe(made)}, not (inputs, labels)"
            raise BadInput(f"{fact}. Return both, or take (inputs, step) and return the inputs.")
        return made

    return Preprocess(lambda *batch: both(*batch)[0], lambda *batch: both(*batch)[1])


def preprocessed(preprocess: Preprocess | None, inputs: Tree, labels: Tree) -> tuple[Tree, Tree]:
    """The shapes of (the inputs of stage 1, the labels of the loss), from the shapes of a batch. Raises BadInput if
    preprocess fails."""
    if preprocess is None:
        return inputs, labels
    batch = inputs, labels, jax.ShapeDtypeStruct((), jnp.int32)
    with_labels = f" with labels {describe(labels)}" if preprocess.labels else ""
    fact = f"preprocess cannot take {describe(inputs)}{with_labels}."
    x = trace_or_refuse(fact, lambda: jax.eval_shape(preprocess.inputs, *batch))
    return x, jax.eval_shape(preprocess.labels, *batch) if preprocess.labels else labels
