"""Loss and top-1 error of the whole network, with the weights that the stages have when asked."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.errors import FlaxError

from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.errors import BadInput, sentence
from fdg_jax.stage.shapes import describe


class Evaluation(NamedTuple):
    """The result of an evaluation.

    loss: the mean over examples.
    error_percent: the top-1 error over all labels; None if the outputs are not class scores.
    images: number of examples, of images or of anything else (the length of the labels).
    """

    loss: float
    error_percent: float | None
    images: int


def loss_and_errors(
    loss: Callable[[Any, Any], jax.Array], outputs: Any, labels: Any
) -> tuple[jax.Array, jax.Array | None]:
    """(loss of a batch, number of wrong top-1 predictions or None). It can be traced."""
    arrays = isinstance(outputs, jax.Array) and isinstance(labels, jax.Array)
    scores = arrays and outputs.ndim == labels.ndim + 1 and jnp.issubdtype(labels.dtype, jnp.integer)
    return loss(outputs, labels), jnp.sum(jnp.argmax(outputs, -1) != labels) if scores else None


def evaluate(
    run: Callable[[Any, Any], tuple[jax.Array, jax.Array | None]],
    batches: Iterable,
    unfinished: UnfinishedOperations | None = None,
    expected: tuple[Any, Any] = (None, None),
) -> Evaluation:
    """Evaluates batches. The host reads results once, at the end.

    Arguments:
        run: run(inputs, labels) -> (loss, number of wrong predictions or None).
        batches: (inputs, labels) of each batch.
        unfinished: where to note the operations; None if nobody watches.
        expected: shapes of stage 1's inputs and of labels in training, for an error message.

    Returns: the mean loss and the error.

    Raises:
        BadInput: there are no batches, or one does not fit the network.
    """
    results, predictions = [], 0
    for number, (inputs, labels) in enumerate(batches, 1):
        leaves = jax.tree.leaves(labels)
        if unfinished:
            unfinished.begin("E", 0, number, number)
        try:
            results.append((len(leaves[0]), *run(inputs, labels)))
        except (TypeError, ValueError, AssertionError, FlaxError) as error:  # what tracing the user's code raises
            fact = f"evaluate cannot take inputs {describe(inputs)} with labels {describe(labels)}: {sentence(error)}"
            x, y = map(describe, expected)
            raise BadInput(
                f"{fact} In training stage 1 takes {x} and labels are {y}. Use arrays like these."
            ) from error
        if unfinished:
            unfinished.end(results[-1][1])
        predictions += leaves[0].size
    if not results:
        raise BadInput("nothing to evaluate: there are 0 test batches. Give at least one (inputs, labels).")
    examples = sum(n for n, _, _ in results)
    losses, wrongs = jax.device_get(([loss for _, loss, _ in results], [wrong for _, _, wrong in results]))
    loss = sum(n * float(value) for (n, _, _), value in zip(results, losses, strict=True)) / examples
    error = None if None in wrongs else 100.0 * sum(int(wrong) for wrong in wrongs) / predictions
    return Evaluation(loss, error, examples)


class CompiledTransform:
    """Compiles functions of an evaluation's transform. It keeps the newest, as callers pass the same transform again.

    Arguments:
        make: make(transform) -> the function to compile.
    """

    def __init__(self, make: Callable[[Any], Callable]):
        self.make, self.last = make, None

    def __call__(self, transform: Callable | None) -> Callable:
        if self.last is None or self.last[0] is not transform:
            self.last = (transform, jax.jit(self.make(transform)))
        return self.last[1]
