"""Shapes and dtypes of trees of arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any


def zeros(shapes: Tree) -> Tree:
    """Arrays of zeros with these shapes and dtypes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def shape_of(tree: Tree) -> Tree:
    """The shapes and dtypes of a tree of JAX arrays, NumPy arrays or jax.ShapeDtypeStructs, as JAX will have them."""

    def of(array: Any) -> jax.ShapeDtypeStruct:  # random keys have an extended dtype
        dtype = jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(np.shape(array), dtype)

    return jax.tree.map(of, tree)


def with_examples(tree: Tree, n: int, batch: int | None = None) -> Tree:
    """The shapes of arrays [batch, ...] for n examples. batch: if it is given, only arrays whose first axis has this
    length are changed. Other arrays, such as a table of weights, have no batch axis."""

    def changed(like: Any) -> jax.ShapeDtypeStruct:
        first = n if batch is None or like.shape[:1] == (batch,) else like.shape[0]
        return jax.ShapeDtypeStruct((first, *like.shape[1:]), like.dtype)

    return jax.tree.map(changed, tree)


def examples(tree: Tree) -> int:
    """The number of examples in a tree of arrays [batch, ...]."""
    return jax.tree.leaves(tree)[0].shape[0]


def describe(tree: Tree) -> str:
    """The shapes of a tree in words, such as "float32[8, 32, 32, 3]"; several are separated by commas."""
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(tree)) or "nothing"
