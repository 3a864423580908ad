"""Loss and top-1 error of the whole network, with the current weights of the stages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.errors import FlaxError

from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.errors import BadInput, sentence
from fdg_jax.stages.functions import LOSS, loss_of, metrics_of, stream_key
from fdg_jax.stages.shapes import describe, examples
from fdg_jax.stages.weighted import batch_weights, without_weights


class Evaluation(NamedTuple):
    """The result of an evaluation.

    loss: the mean over examples, each counted with its weight where one part of the labels is `fdg_jax.Weighted`. (If
        several are, each batch counts by its examples.)
    error_percent: the top-1 error over all labels, weighted likewise; None if the outputs are not class scores.
    images: number of examples, of images or of anything else (the length of the inputs), whatever their weights.
    metrics: what the loss function returned beside the loss, {name: number}, averaged as the loss is.
    """

    loss: float
    error_percent: float | None
    images: int
    metrics: Mapping[str, float] = {}


class Tally(NamedTuple):
    """The results of one batch in an evaluation.

    loss, metrics: as the loss function returned them.
    wrong: number of wrong top-1 predictions, or the sum of their weights; None if the outputs are not class scores.
    weight: the weight of the loss in the average: the number of examples, or the sum of their weights.
    labels: the weight of the error in the average: the number of labels, or the sum of their weights.
    """

    loss: jax.Array
    wrong: jax.Array | None
    metrics: Mapping[str, jax.Array]
    weight: jax.Array
    labels: jax.Array


def tally(report: Callable[..., Any], outputs: Any, labels: Any, key: Any = None, batch: int = 0) -> Tally:
    """The results of one batch. It can be traced.

    report: the user's loss. key: of stage K, if the loss takes one. batch: the number of examples, for a batch without
        labels.
    """
    keys = () if key is None else (stream_key(key, LOSS),)
    result, truth = report(outputs, labels, *keys), without_weights(labels)
    arrays = isinstance(outputs, jax.Array) and isinstance(truth, jax.Array)
    scores = arrays and outputs.ndim == truth.ndim + 1 and jnp.issubdtype(truth.dtype, jnp.integer)
    # A single score, such as one logit or a regression, chooses no class.
    wrong = jnp.argmax(outputs, -1) != truth if scores and outputs.shape[-1] > 1 else None
    first = jax.tree.leaves(labels)[:1]  # there may be no labels
    weight = jnp.float32(len(first[0]) if first else batch)
    counted = jnp.float32(first[0].size if first else batch)
    weights = batch_weights(labels)
    if weights is not None:
        weight = jnp.sum(weights.astype(jnp.float32))
        if wrong is not None:
            weights = labels.spread(truth.shape)
            wrong, counted = weights * wrong, jnp.sum(weights)
    return Tally(loss_of(result), None if wrong is None else jnp.sum(wrong), metrics_of(result), weight, counted)


def evaluate(
    run: Callable[[Any, Any], Tally],
    batches: Iterable,
    unfinished: UnfinishedOperations | None = None,
    expected: tuple[Any, Any] = (None, None),
    result: Callable[[Sequence[Tally], int], Any] | None = None,
) -> Any:
    """Evaluates batches. The host reads results once, at the end.

    Arguments:
        run: run(inputs, labels) -> Tally.
        batches: (inputs, labels) of each batch.
        unfinished: where each batch's evaluation is noted while it runs, so that a stall can be reported; None without
            a stall watch.
        expected: shapes of stage 1's inputs and of labels in training, for an error message.
        result: makes the result of the tallies and the number of examples; by default `averaged`.

    Returns: the mean loss and the error.

    Raises:
        BadInput: there are no batches, or one does not fit the network, or all weights are 0.
    """
    results: list[Tally] = []
    counted = 0
    for number, (inputs, labels) in enumerate(batches, 1):
        if unfinished:
            unfinished.begin("E", 0, number, number)
        (x, y), given = map(describe, expected), f"inputs {describe(inputs)} with labels {describe(labels)}"
        with fitting("evaluate", given, f"stage 1 takes {x}, and labels are {y}"):
            results.append(run(inputs, labels))
        if unfinished:
            unfinished.end(results[-1].loss)
        counted += examples((labels, inputs))
    if not results:
        raise BadInput("nothing to evaluate: there are 0 test batches. Give at least one (inputs, labels).")
    return (result or averaged)(jax.device_get(results), counted)


@contextmanager
def fitting(call: str, given: str, expected: str) -> Iterator[None]:
    """Turns what tracing the user's code raises into BadInput. expected: what fits in training, for the message."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, AssertionError, FlaxError) as error:
        fact, way_out = f"{call} cannot take {given}", "Give such arrays, or convert yours with transform=."
        raise BadInput(f"{fact}: {sentence(error)} In training {expected}. {way_out}") from error


def averaged(results: Sequence[Tally], examples: int) -> Evaluation:
    """The result of an evaluation.

    Arguments:
        results: of each batch, as host arrays.
        examples: in all batches.

    Raises:
        BadInput: all weights are 0.
    """
    total = sum(float(each.weight) for each in results)
    if not total > 0:
        raise BadInput(f"nothing to evaluate: the weights of {examples} examples sum to {total}. Use weights above 0.")

    def mean(get: Callable[[Tally], Any]) -> float:
        return sum(float(each.weight) * float(get(each)) for each in results if each.weight) / total  # else 0 / 0

    metrics = {name: mean(lambda each, name=name: each.metrics[name]) for name in results[0].metrics}
    wrong = [float(each.wrong) for each in results if each.wrong is not None]
    labels = sum(float(each.labels) for each in results)
    error = 100.0 * sum(wrong) / labels if len(wrong) == len(results) else None
    return Evaluation(mean(lambda each: each.loss), error, examples, metrics)
