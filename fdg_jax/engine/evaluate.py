"""Loss and top-1 error of the composed stages, with whatever weights they have when asked."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.errors import FlaxError

from fdg_jax.engine.unfinished import Trail
from fdg_jax.errors import BadInput, sentence
from fdg_jax.stage.shapes import text


class Evaluation(NamedTuple):
    """loss: mean over images; error_percent: top-1 over all labels, None where outputs are not class scores; images:
    how many (the length of the labels)."""

    loss: float
    error_percent: float | None
    images: int


def tally(loss: Callable[[Any, Any], jax.Array], outputs: Any, labels: Any) -> tuple[jax.Array, jax.Array | None]:
    """(loss of the batch, number of wrong top-1 predictions or None), traceable."""
    arrays = isinstance(outputs, jax.Array) and isinstance(labels, jax.Array)
    scores = arrays and outputs.ndim == labels.ndim + 1 and jnp.issubdtype(labels.dtype, jnp.integer)
    return loss(outputs, labels), jnp.sum(jnp.argmax(outputs, -1) != labels) if scores else None


def evaluate(
    run: Callable[[Any, Any], tuple[jax.Array, jax.Array | None]],
    batches: Iterable,
    trail: Trail | None = None,
    expected: tuple[Any, Any] = (None, None),
) -> Evaluation:
    """Sums `run(inputs, labels) -> (loss, wrong)` over batches; the host reads once, at the end. trail: told of it.

    expected: shapes of what stage 1 takes, and of labels, in training: to be told where a batch does not fit.
    """
    results, predictions = [], 0
    for number, (inputs, labels) in enumerate(batches, 1):
        leaves = jax.tree.leaves(labels)
        if trail:
            trail.begin("E", 0, number, number)
        try:
            results.append((len(leaves[0]), *run(inputs, labels)))
        except (TypeError, ValueError, AssertionError, FlaxError) as error:  # what tracing the user's code may raise
            fact = f"evaluate cannot take inputs {text(inputs)} with labels {text(labels)}: {sentence(error)}"
            x, y = map(text, expected)
            raise BadInput(f"{fact} In training stage 1 takes {x} and labels are {y}. Use the like.") from error
        if trail:
            trail.end(results[-1][1])
        predictions += leaves[0].size
    if not results:
        raise BadInput("nothing to evaluate: there are 0 test batches. Give at least one (inputs, labels).")
    images = sum(n for n, _, _ in results)
    losses, wrongs = jax.device_get(([loss for _, loss, _ in results], [wrong for _, _, wrong in results]))
    loss = sum(n * float(value) for (n, _, _), value in zip(results, losses, strict=True)) / images
    error = None if None in wrongs else 100.0 * sum(int(wrong) for wrong in wrongs) / predictions
    return Evaluation(loss, error, images)


class Compiled:
    """Jits a function of evaluation's transform; keeps the last one, as callers give the same again and again."""

    def __init__(self, make: Callable[[Any], Callable]):
        self.make, self.last = make, None

    def __call__(self, transform: Callable | None) -> Callable:
        if self.last is None or self.last[0] is not transform:
            self.last = (transform, jax.jit(self.make(transform)))
        return self.last[1]
