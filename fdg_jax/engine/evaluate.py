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

    loss: the mean over all examples. If exactly one part of the labels is `fdg_jax.Weighted`, it is the weighted mean;
        if several parts are, each batch counts by its number of examples.
    error_percent: the top-1 error over all labels, with the same weights; None if the outputs are not class scores.
    images: the number of examples, regardless of weights. An example need not be an image.
    metrics: the numbers that the loss function returned beside the loss, {name: number}, averaged like the loss.
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
    """The results of one batch. Traceable.

    report: the user's loss function. key: the key of stage K, if the loss takes a key. batch: the number of examples,
        for a batch without labels.
    """
    keys = () if key is None else (stream_key(key, LOSS),)
    result, truth = report(outputs, labels, *keys), without_weights(labels)
    arrays = isinstance(outputs, jax.Array) and isinstance(truth, jax.Array)
    scores = arrays and outputs.ndim == truth.ndim + 1 and jnp.issubdtype(truth.dtype, jnp.integer)
    # One output per label, such as one logit or a regression, does not choose a class.
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
        unfinished: records the evaluation of each batch until it is finished, so that a stall can be reported; None for
            no record.
        expected: shapes of stage 1's inputs and of labels in training, for an error message.
        result: result(tallies, number of examples) -> the returned value; by default `averaged`.

    Returns: what `result` returns, by default an `Evaluation`.

    Raises:
        BadInput: there are no batches, a batch does not fit the network, or all weights are 0.
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
    """Turns errors from tracing the user's code into BadInput.

    call, given, expected: for the message: the caller's name, the given arrays, and those of training.
    """
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, AssertionError, FlaxError) as error:
        fact, way_out = f"{call} cannot take {given}", "Give such arrays, or convert yours with transform=."
        raise BadInput(f"{fact}: {sentence(error)} In training {expected}. {way_out}") from error


def averaged(results: Sequence[Tally], examples: int) -> Evaluation:
    """The result of an evaluation, from the tallies of its batches.

    Arguments:
        results: the tallies, as host arrays.
        examples: the number of examples in all batches.

    Raises:
        BadInput: all weights are 0.
    """
    total = sum(float(each.weight) for each in results)
    if not total > 0:
        raise BadInput(f"nothing to evaluate: the weights of {examples} examples sum to {total}. Use weights above 0.")

    def mean(get: Callable[[Tally], Any]) -> float:
        return sum(float(each.weight) * float(get(each)) for each in results if each.weight) / total  # avoids 0 / 0

    metrics = {name: mean(lambda each, name=name: each.metrics[name]) for name in results[0].metrics}
    wrong = [float(each.wrong) for each in results if each.wrong is not None]
    labels = sum(float(each.labels) for each in results)
    error = 100.0 * sum(wrong) / labels if len(wrong) == len(results) else None
    return Evaluation(mean(lambda each: each.loss), error, examples, metrics)
