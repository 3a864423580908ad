"""Loss and top-1 error of the whole network, with the weights that the stages have when asked."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.errors import FlaxError

from fdg_jax.engine.unfinished import UnfinishedOperations
from fdg_jax.errors import BadInput, sentence
from fdg_jax.stage.functions import loss_of, metrics_of
from fdg_jax.stage.shapes import describe
from fdg_jax.stage.weighted import Weighted, without_weights


class Evaluation(NamedTuple):
    """The result of an evaluation.

    loss: the mean over examples, each counted with its weight where labels are `fdg_jax.Weighted`.
    error_percent: the top-1 error over all labels, weighted likewise; None if the outputs are not class scores.
    images: number of examples, of images or of anything else (the length of the labels), whatever their weights.
    metrics: what the loss function returned beside the loss, {name: number}, averaged as the loss is.
    """

    loss: float
    error_percent: float | None
    images: int
    metrics: Mapping[str, float] = {}


class Tally(NamedTuple):
    """What is computed of a batch in an evaluation.

    loss, metrics: as the loss function returned them.
    wrong: number of wrong top-1 predictions, or the sum of their weights; None if the outputs are not class scores.
    weight, labels: of labels with weights, by what the loss counts, and the sum of the weights of all predictions; None
        of others, which count by their number.
    """

    loss: jax.Array
    wrong: jax.Array | None
    metrics: Mapping[str, jax.Array] = {}
    weight: jax.Array | None = None
    labels: jax.Array | None = None


def tally(report: Callable[[Any, Any], Any], outputs: Any, labels: Any) -> Tally:
    """What an evaluation needs of a batch. report: the user's loss. It can be traced."""
    told, truth = report(outputs, labels), without_weights(labels)
    arrays = isinstance(outputs, jax.Array) and isinstance(truth, jax.Array)
    scores = arrays and outputs.ndim == truth.ndim + 1 and jnp.issubdtype(truth.dtype, jnp.integer)
    # One score chooses no class: a single logit, or a regression.
    wrong = jnp.argmax(outputs, -1) != truth if scores and outputs.shape[-1] > 1 else None
    found = Tally(loss_of(told), None if wrong is None else jnp.sum(wrong), metrics_of(told))
    if not isinstance(labels, Weighted):
        return found
    found = found._replace(weight=jnp.sum(labels.weights.astype(jnp.float32)))
    if wrong is None:
        return found
    weights = labels.spread(truth.shape)
    return found._replace(wrong=jnp.sum(weights * wrong), labels=jnp.sum(weights))


def evaluate(
    run: Callable[[Any, Any], Tally],
    batches: Iterable,
    unfinished: UnfinishedOperations | None = None,
    expected: tuple[Any, Any] = (None, None),
) -> Evaluation:
    """Evaluates batches. The host reads results once, at the end.

    Arguments:
        run: run(inputs, labels) -> Tally.
        batches: (inputs, labels) of each batch.
        unfinished: where to note the operations; None if nobody watches.
        expected: shapes of stage 1's inputs and of labels in training, for an error message.

    Returns: the mean loss and the error.

    Raises:
        BadInput: there are no batches, or one does not fit the network, or all weights are 0.
    """
    results: list[Tally] = []
    examples, predictions = [], 0
    for number, (inputs, labels) in enumerate(batches, 1):
        leaves = jax.tree.leaves(labels)
        if unfinished:
            unfinished.begin("E", 0, number, number)
        x, y = map(describe, expected)
        given = f"evaluate cannot take inputs {describe(inputs)} with labels {describe(labels)}"
        with fitting(given, f"In training stage 1 takes {x} and labels are {y}. Use arrays like these"):
            results.append(run(inputs, labels))
        if unfinished:
            unfinished.end(results[-1].loss)
        examples.append(len(leaves[0]))
        predictions += leaves[0].size
    if not results:
        raise BadInput("nothing to evaluate: there are 0 test batches. Give at least one (inputs, labels).")
    return averaged(jax.device_get(results), examples, predictions)


@contextmanager
def fitting(fact: str, expected: str) -> Iterator[None]:
    """Raises BadInput for what tracing the user's code raises. expected: what would fit."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, AssertionError, FlaxError) as error:
        raise BadInput(f"{fact}: {sentence(error)} {expected}, or make them by transform=.") from error


def fitting_inputs(inputs: Any, expected: Any) -> Any:
    """`fitting` of what `predict` is given. expected: shapes of stage 1's inputs in training."""
    fact = f"predict cannot take inputs {describe(inputs)}"
    return fitting(fact, f"In training stage 1 takes {describe(expected)}. Use arrays like these")


def averaged(results: Sequence[Tally], examples: Sequence[int], predictions: int) -> Evaluation:
    """The result of an evaluation.

    Arguments:
        results: of each batch, as host arrays.
        examples: in each batch.
        predictions: number of labels in all.

    Raises:
        BadInput: all weights are 0.
    """
    weighted = results[0].weight is not None
    counts = [float(each.weight) for each in results] if weighted else examples  # type: ignore[arg-type]
    total = sum(counts)
    if not total > 0:
        raise BadInput(f"nothing to evaluate: the weights of {sum(examples)} examples add up to {total}.")
    counted = [(n, each) for n, each in zip(counts, results, strict=True) if n]  # a mean of no weight may be 0 / 0

    def mean(get: Callable[[Tally], Any]) -> float:
        return sum(n * float(get(each)) for n, each in counted) / total

    metrics = {name: mean(lambda each, name=name: each.metrics[name]) for name in results[0].metrics}
    wrongs = [each.wrong for each in results]
    error = None
    if not any(wrong is None for wrong in wrongs):
        of = sum(float(each.labels) for each in results) if weighted else predictions  # type: ignore[arg-type]
        error = 100.0 * sum(float(wrong) if weighted else int(wrong) for wrong in wrongs) / of  # type: ignore[arg-type]
    return Evaluation(mean(lambda each: each.loss), error, sum(examples), metrics)
