"""Checks batches: their arrays must be like those of the example that the pipeline was initialised with.

Only shapes and dtypes of a batch are checked as it enters, so that the host never waits. By default JAX computes in 32
bits: for every batch it silently casts 64-bit NumPy arrays on the host. Such arrays are allowed only if the example was
64-bit as well. So a batch's dtypes must be those of the example, or the dtypes that JAX casts them to.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.arrays import check_usable
from fdg_jax.checks.arguments import kind
from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.machine.jax_internals import is_tracing
from fdg_jax.stages.functions import loss_of, metrics_of
from fdg_jax.stages.shapes import describe, with_examples
from fdg_jax.stages.weighted import Weighted, all_weighted, batch_weights, is_weighted, without_weights

Tree = Any
Pair = tuple[Tree, Tree]
NAMES = ("inputs", "labels")
WEIGHTED = "(inputs, fdg_jax.Weighted(labels, weights)), or (inputs, labels)"
ARRAYS = (np.ndarray, jax.Array, jax.ShapeDtypeStruct)
NEAR = 1e-4  # relative; float32 rounds a mean by 1e-6, and a loss that is no mean is off by much more


def as_pair(batch: Any) -> Any:
    """Turns a batch {"inputs": ..., "labels": ..., "weights": ...} into (inputs, labels). Weights are put around the
    labels (`Weighted`). If the batch has no labels, they are None. Batches of another form are returned unchanged."""
    if not isinstance(batch, Mapping) or not {"inputs"} <= batch.keys() <= {*NAMES, "weights"}:
        return batch
    labels = batch.get("labels")
    return batch["inputs"], Weighted(labels, batch["weights"]) if "weights" in batch else labels


def copy_arrays(tree: Tree) -> Tree:
    """A tree with its NumPy arrays copied.

    A CPU device uses the caller's memory while a batch is in flight, and the caller may overwrite this memory
    meanwhile.
    """
    return jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, tree)


def canonical(dtype: Any) -> np.dtype:
    """The dtype that JAX casts a dtype to: float32 for float64, unless jax_enable_x64 is set."""
    return jax.dtypes.canonicalize_dtype(dtype)


@cache
def numeric(dtype: Any) -> bool:
    """Whether a dtype is numeric or bool, rather than text or the objects of a ragged list."""
    return jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)


def batch_shapes(batch: Any, fact: str, use: str, shapes_do: bool = False) -> Pair:
    """The shapes and dtypes of a batch.

    Arguments:
        batch: (inputs, labels), each a tree of arrays [batch, ...]; labels may be None.
        fact: the beginning of the error message, such as "a batch".
        use: the correct call, for the error message.
        shapes_do: whether jax.ShapeDtypeStructs are accepted instead of arrays.

    Returns: (inputs, labels) as trees of jax.ShapeDtypeStruct.

    Raises:
        BadInput: the batch is not such a pair, an array cannot be used, or lengths differ or are 0.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        if isinstance(batch, Mapping):
            names = ", ".join(map(str, batch)) or "nothing"
            raise BadInput(f"{fact} that is a dictionary has inputs, and may have labels and weights, not {names}.")
        raise BadInput(f"{fact} is (inputs, labels), not {kind(batch)}. Use {use}.")
    lengths = set()
    for weights in (each.weights for each in all_weighted(batch[1])):
        if isinstance(weights, list | tuple):
            fact = f"the weights are {kind(weights)}, but an array of numbers is needed"
            raise BadInput(f"{fact}. Use numpy.asarray(weights), say.")
    for name, tree in zip(NAMES, batch, strict=True):
        leaves = jax.tree.leaves(tree)
        for leaf in leaves or ([] if name == "labels" and tree is None else [None]):
            if type(leaf) is not np.ndarray and not shapes_do:
                check_usable(f"the {name}", leaf)
            if not isinstance(leaf, ARRAYS) or not numeric(leaf.dtype):
                fact = f"the {name} hold {kind(leaf)}, but an array of numbers is needed"
                array = f"Use numpy.asarray({name})" if leaf is not None else f"If there are no {name}, give None"
                raise BadInput(f"{fact}. {array}.")
            if not leaf.shape:
                raise BadInput(f"the {name} are {describe(leaf)}: the first axis of an array is the batch. Use {use}.")
            lengths.add(leaf.shape[0])
    if len(lengths) > 1:
        raise BadInput(f"inputs and labels of one batch differ in length: {sorted(lengths)}. Give equal lengths.")
    check_weights(batch[1])
    if 0 in lengths:
        raise BadInput(f"{fact} of 0 examples has no mean loss and trains nothing. Leave empty batches out.")
    return tuple(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree) for tree in batch)  # type: ignore


def check_weights(labels: Tree) -> None:
    """Raises BadInput unless labels with weights have one weight for each example or token."""
    for inner, weights in all_weighted(labels):
        shapes = [label.shape for label in jax.tree.leaves(inner)]
        if not isinstance(weights, ARRAYS) or any(weights.shape != shape[: len(weights.shape)] for shape in shapes):
            fact = f"the weights are {describe(weights)}, and the labels are {describe(inner)}"
            raise BadInput(f"{fact}. Give one weight for each example [batch], or for each token [batch, T].")


def check_example(batch: Any) -> Pair:
    """The shapes and dtypes of the example batch, with which later batches are compared. Raises BadInput."""
    return batch_shapes(batch, "the example batch", "init(key, (inputs, labels))", shapes_do=True)


def check_batch(example: Pair, batch: Any) -> Pair:
    """The shapes of a batch. Raises BadInput if the batch differs from the example in more than the lengths of its
    axes."""
    shapes = batch_shapes(batch, "a batch", "step((inputs, labels))")
    check_alike(example, shapes)
    return shapes


def check_alike(example: Pair, given: Pair) -> None:
    """Raises BadInput if tree structure, dtypes or numbers of axes differ from the example's."""
    for name, like, found in zip(NAMES, example, given, strict=True):
        if jax.tree.structure(found) != jax.tree.structure(like):
            raise BadInput(f"the {name} are {describe(found)}, but at init they were {describe(like)}.")
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True):
            fact = f"the {name} are {describe(a)}, but at init they were {describe(b)}."
            if len(a.shape) != len(b.shape) or canonical(a.dtype) != canonical(b.dtype):
                raise BadInput(f"{fact} Only the lengths of axes may differ from init.")
            if a.dtype not in (b.dtype, canonical(b.dtype)):
                raise BadInput(f'{fact} JAX computes with {b.dtype}: convert once, by {name}.astype("{b.dtype}").')


def check_indices(example: Pair, images: Any, labels: Any, indices: Any) -> Pair | None:
    """Checks the arguments of `Pipeline.train`.

    Arguments:
        example: what `check_example` returned.
        images, labels: arrays [N, ...]; labels may be None.
        indices: integers [W, batch] in 0..N-1, a row for each batch.

    Returns: the shapes of a batch; None if `indices` has no rows.

    Raises:
        BadInput: an argument has another form, or its arrays are unlike the example's.
    """
    if not isinstance(indices, jax.Array | np.ndarray) or indices.ndim != 2 or indices.dtype.kind not in "iu":
        fact = f"indices is {kind(indices)}, not an integer array [W, batch] with a row for each batch"
        raise BadInput(f"{fact}. Use indices[None] for a single batch, or reshape the array.")
    given = {"images": images} if labels is None else {"images": images, "labels": labels}
    for name, array in given.items():
        if isinstance(array, tuple | Mapping):  # for example labels with weights
            raise BadInput(f"{name} is {kind(array)}, but train takes one array. Use step((inputs, labels)).")
        if not isinstance(array, jax.Array | np.ndarray):
            raise BadInput(f"{name} is {kind(array)}, not an array. Convert it once, by numpy.asarray({name}).")
    for name, array in {**given, "indices": indices}.items():
        check_usable(name, array)
    check_alike(example, jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), (images, labels)))
    if not len(indices):
        return None
    if not indices.shape[1]:
        raise BadInput(f"indices is {kind(indices)}: its rows are empty. Give at least one index in each row.")
    if not (indices.min() >= 0 and indices.max() < len(images) == len(images if labels is None else labels)):
        into = " and ".join(f"{len(array)} {name}" for name, array in given.items())
        raise BadInput(f"indices are {indices.min()} to {indices.max()}, but there are {into}. Use indices that exist.")
    return with_examples((images, labels), indices.shape[1])


def checked_batches(batches: Any, example: Tree, made: Tree) -> Iterator[Pair]:
    """The batches of an evaluation. Each batch is checked and copied when it is used.

    Batch sizes may differ from training. The inputs' dtype may differ, too, since a transform may follow. Labels must
    have the sort of number and the number of axes that they have in training, before or after preprocess.

    Arguments:
        batches: an iterable of (inputs, labels).
        example: the labels of the example batch, as shapes.
        made: what preprocess makes of these labels, as shapes.

    Raises:
        BadInput: the batches are something else.
    """
    use = "evaluate([(inputs, labels), ...]), a list even for a single batch"
    if not isinstance(batches, Iterable):
        raise BadInput(f"evaluate takes batches of (inputs, labels), not {kind(batches)}. Use {use}.")
    if isinstance(batches, Mapping):
        raise BadInput(f"evaluate takes a list of batches, not a single one. Use {use}.")
    for batch in map(as_pair, batches):
        _, labels = batch_shapes(batch, "each batch of evaluate", use)
        if not same_labels(made, labels):
            check_labels(example, labels)
        yield copy_arrays(tuple(batch))


def check_inputs(like: Tree, inputs: Any, transformed: bool) -> None:
    """Checks the inputs of `Pipeline.predict`.

    Arguments:
        like: the inputs of the example batch.
        inputs: the caller's inputs.
        transformed: whether a transform follows, so that the inputs may have other shapes than the example's.

    Raises:
        BadInput: the inputs are not arrays [n, ...] with the same n >= 1, or are unlike the example's.
    """
    leaves = jax.tree.leaves(inputs)
    if leaves and all(isinstance(leaf, ARRAYS) and leaf.shape[:1] == (0,) for leaf in leaves):
        raise BadInput(f"the inputs are {describe(inputs)}: they hold no example. Give predict at least one example.")
    found, _ = batch_shapes((inputs, inputs), "a batch", "predict(inputs)")
    if not transformed:
        check_alike((like, like), (found, found))


def check_labels(like: Tree, found: Tree) -> None:
    """Raises BadInput if labels differ from those at init in structure, number of axes or sort of number."""
    if same_labels(like, found):
        return
    if bool(all_weighted(found)) != bool(all_weighted(like)):
        one, other = ("no weights", "weights") if all_weighted(like) else ("weights", "no weights")
        raise BadInput(f"the labels have {one}, but at init they had {other}. Give all batches as {WEIGHTED}.")
    fact = f"the labels are {describe(found)}, but at init they were {describe(like)}"
    raise BadInput(f"{fact}. Give labels of the same dtype and number of axes.")


def same_labels(like: Tree, found: Tree) -> bool:
    """Whether labels agree with other labels in structure, numbers of axes and sorts of number."""
    # Weights may be of examples or of tokens, regardless of those at init; `check_weights` has checked them.
    pairs = [jax.tree.leaves(without_weights(labels)) for labels in (found, like)]
    return jax.tree.structure(found) == jax.tree.structure(like) and all(
        (sort_of_number(a.dtype), a.ndim) == (sort_of_number(b.dtype), b.ndim) for a, b in zip(*pairs, strict=True)
    )


def sort_of_number(dtype: Any) -> str:
    """The sort of number of a dtype: "integers", "floating" (with bfloat16), "complex" or "others"."""
    sorts = {"integers": np.integer, "floating": np.floating, "complex": np.complexfloating}
    return next((name for name, of in sorts.items() if jnp.issubdtype(dtype, of)), "others")


def check_mean(loss: Callable[[Tree, Tree], Tree], outputs: Tree, labels: Tree, cuts: str, way_out: str) -> None:
    """Checks that a loss is a mean over examples. Only for such a loss do the gradients of a batch's parts average to
    the gradient of the whole batch. Warns about a metric that is no mean.

    Shapes do not show this. So the loss is computed on four made-up examples, and on both halves of these.

    Arguments:
        loss: the user's function (outputs, labels) -> loss.
        outputs, labels: the shapes of the loss's arguments, arrays [batch, ...].
        cuts: the reason for parts, such as "method gpipe cuts a batch into 4 micro-batches".
        way_out: the advice at the end of the message.

    Raises:
        BadInput: the loss of four examples is not the mean of the losses of their halves.
    """
    if is_tracing():  # inside a trace of a whole pipeline no loss can be computed
        return
    run = programs.jit(lambda *batch: loss(*batch))
    four = made_up(outputs, 1), made_up(labels, 2)
    parts = [jax.tree.map(lambda leaf, at=at: leaf[at : at + 2], four) for at in (0, 2)]
    try:
        whole, *halves = (run(*batch) for batch in (four, *parts))
    except Exception:  # a loss for one batch size only: training will fail with its own message
        return
    given = [batch_weights(y) for _, y in parts]
    weights = np.array([2.0 if each is None else np.sum(each) for each in given])
    shares = weights / max(weights.sum(), 1e-9)

    def is_mean(get: Callable[[Tree], Any]) -> bool:
        found, one, two = (np.asarray(get(each), np.float64) for each in (whole, *halves))
        near = max(NEAR, 4 * float(jnp.finfo(loss_of(whole).dtype).eps)) * max(abs(found), abs(one), abs(two))
        return not abs(found - shares @ [one, two]) > near  # a NaN is accepted

    differs = "of a batch is not the mean of its values on the parts"
    if not is_mean(loss_of):
        raise BadInput(f"{cuts}, but the loss {differs}: training would minimise another function. {way_out}")
    for name in metrics_of(whole):
        if not is_mean(lambda told, name=name: metrics_of(told)[name]):
            warnings.warn(f"{cuts}, but the metric {name!r} {differs}; Metrics reports that mean.", stacklevel=5)


def made_up(shapes: Tree, seed: int) -> Tree:
    """Random arrays of four examples: fractions for floats, and 0 or 1 for integers, which are valid classes for any
    loss. Integer weights are 1 except for the last example, so that the halves differ in weight."""
    draw = np.random.default_rng(seed)

    def array(leaf):
        fractions = draw.uniform(0.05, 0.95, (4, *leaf.shape[1:]))
        return jnp.asarray(fractions if jnp.issubdtype(leaf.dtype, jnp.inexact) else fractions > 0.5, leaf.dtype)

    def uneven(leaf):
        if not is_weighted(leaf):
            return array(leaf)
        labels, weights = jax.tree.map(array, leaf)
        fractions = jnp.issubdtype(weights.dtype, jnp.inexact)
        return Weighted(labels, weights if fractions else jnp.ones_like(weights).at[3].set(weights.dtype.type(0)))

    return jax.tree.map(uneven, shapes, is_leaf=is_weighted)
