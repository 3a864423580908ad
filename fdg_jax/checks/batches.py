"""What a batch must be: arrays like those of the example that the pipeline was initialised with.

Looked at on every entry, but only at shapes and dtypes, so that nothing is waited for. JAX computes in 32 bits unless
told otherwise and casts 64-bit NumPy arrays silently, on the host, again with every batch. That is allowed only to
those who did it at init as well: dtypes must be those of the example, or what JAX makes of them.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.checks.arguments import kind
from fdg_jax.errors import BadInput
from fdg_jax.stage.shapes import text
from fdg_jax.storage.plain import check_usable

Tree = Any
Pair = tuple[Tree, Tree]
NAMES = ("inputs", "labels")
ARRAYS = (np.ndarray, jax.Array, jax.ShapeDtypeStruct)


def copy_arrays(tree: Tree) -> Tree:
    """Copies NumPy arrays: a CPU device would use the caller's memory for as long as a batch is under way, and he may
    refill it at once."""
    return jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, tree)


def canonical(dtype: Any) -> np.dtype:
    """What JAX makes of a dtype: float32 of float64, unless jax_enable_x64 is set."""
    return jax.dtypes.canonicalize_dtype(dtype)


@cache
def numeric(dtype: Any) -> bool:
    """Whether it is a dtype of numbers or truth values, not of text or of a ragged list's objects."""
    return jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)


def batch_shapes(batch: Any, fact: str, use: str, shapes_do: bool = False) -> Pair:
    """(inputs, labels) of a batch as trees of jax.ShapeDtypeStruct, with the dtypes they were given in.

    shapes_do: whether shapes alone will do, without numbers to compute with.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise BadInput(f"{fact} is (inputs, labels), not {kind(batch)}. Use {use}.")
    lengths = set()
    for name, tree in zip(NAMES, batch, strict=True):
        leaves = jax.tree.leaves(tree)
        for leaf in leaves or [None]:
            if type(leaf) is not np.ndarray and not shapes_do:
                check_usable(f"the {name}", leaf)
            if not isinstance(leaf, ARRAYS) or not numeric(leaf.dtype):
                fact = f"the {name} hold {kind(leaf)} where an array of numbers is needed"
                raise BadInput(f"{fact}. Use numpy.asarray({name}), say.")
            if not leaf.shape:
                raise BadInput(f"the {name} are {text(leaf)}: the first axis of an array is the batch. Use {use}.")
            lengths.add(leaf.shape[0])
    if len(lengths) > 1:
        raise BadInput(f"inputs and labels of one batch differ in length: {sorted(lengths)}.")
    if 0 in lengths:
        raise BadInput(f"{fact} of 0 examples trains nothing and has no mean loss. Leave empty batches out.")
    return tuple(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree) for tree in batch)  # type: ignore


def check_example(batch: Any) -> Pair:
    """What batches are compared with."""
    return batch_shapes(batch, "the example batch", "init(key, (inputs, labels))", shapes_do=True)


def check_batch(example: Pair, batch: Any) -> None:
    """Refuses a batch that is not like the example the pipeline was initialised with (other lengths are fine)."""
    check_alike(example, batch_shapes(batch, "a batch", "step((inputs, labels))"))


def check_alike(example: Pair, given: Pair) -> None:
    """Raises BadInput where structure, dtypes or shapes behind the first axis are not those of the example."""
    for name, like, found in zip(NAMES, example, given, strict=True):
        if jax.tree.structure(found) != jax.tree.structure(like):
            raise BadInput(f"the {name} are {text(found)}, at init they were {text(like)}: other arrays.")
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True):
            if a.shape[1:] == b.shape[1:] and a.dtype == b.dtype:
                continue
            fact = f"the {name} are {text(a)}, at init {text(b)}."
            if a.shape[1:] != b.shape[1:] or canonical(a.dtype) != canonical(b.dtype):
                raise BadInput(f"{fact} Only the batch size may differ.")
            if a.dtype != canonical(b.dtype):
                raise BadInput(f'{fact} JAX computes with {b.dtype}: use {name}.astype("{b.dtype}"), once.')


def check_indices(example: Pair, images: Any, labels: Any, indices: Any) -> None:
    """Refuses what `Pipeline.train` cannot cut batches from."""
    if not isinstance(indices, jax.Array | np.ndarray) or indices.ndim != 2 or indices.dtype.kind not in "iu":
        fact = f"indices is {kind(indices)}, not an integer array [W, batch]: one row a batch"
        raise BadInput(f"{fact}. Use indices[None] for one batch, or reshape them.")
    for name, array in (("images", images), ("labels", labels)):
        if not isinstance(array, jax.Array | np.ndarray):
            raise BadInput(f"{name} is {kind(array)}, not an array. Use numpy.asarray({name}), once.")
    for name, array in (("images", images), ("labels", labels), ("indices", indices)):
        check_usable(name, array)
    check_alike(example, tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (images, labels)))  # type: ignore
    if not len(indices):
        return
    if not indices.shape[1]:
        raise BadInput(f"indices is {kind(indices)}: batches of 0 examples. Give at least one index a row.")
    if not (indices.min() >= 0 and indices.max() < len(images) == len(labels)):
        raise BadInput(
            f"indices {indices.min()} to {indices.max()} into {len(images)} images and {len(labels)} labels: "
            "they must lie in both."
        )


def checked_batches(batches: Any, example: Pair) -> Iterator[Pair]:
    """The batches of an evaluation, each looked at before it is used. Sizes may be others than in training, and the
    inputs may have another dtype, as a transform may come first; labels must be of the same sort of number."""
    use = "evaluate([(inputs, labels), ...]), a list also for a single batch"
    if not isinstance(batches, Iterable):
        raise BadInput(f"evaluate takes batches of (inputs, labels), not {kind(batches)}. Use {use}.")
    for batch in batches:
        check_labels(example[1], batch_shapes(batch, "each batch of evaluate", use)[1])
        yield copy_arrays(tuple(batch))


def check_labels(like: Tree, found: Tree) -> None:
    """Raises BadInput where labels are other arrays than at init, or floating-point numbers in place of integers."""
    same = jax.tree.structure(found) == jax.tree.structure(like)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True) if same else []
    if not same or any(sort_of_number(a.dtype) != sort_of_number(b.dtype) for a, b in pairs):
        raise BadInput(f"the labels are {text(found)}, at init they were {text(like)}. Give labels of the same dtype.")


def sort_of_number(dtype: Any) -> str:
    """Integers of all kinds are one sort, floating-point numbers (bfloat16 too) another."""
    sorts = {"integers": np.integer, "floating": np.floating, "complex": np.complexfloating}
    return next((name for name, of in sorts.items() if jnp.issubdtype(dtype, of)), "others")
