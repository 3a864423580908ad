"""Converts arrays that no file can hold into plain numbers, and refuses arrays that cannot be used.

Two kinds of JAX arrays in a state are not numbers. A new-style random key (`jax.random.key`) becomes its uint32 words.
The cotangent of an integer has the dtype float0 and no content; it becomes an array of False of the same shape.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fdg_jax.errors import BadInput


def is_key(array: Any) -> bool:
    """Whether an array, or a shape with dtype, is of new-style random keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def plain(leaf: Any) -> Any:
    """Converts a leaf of a state into what is stored. What is already numbers, or no array, is returned unchanged."""
    if getattr(leaf, "dtype", None) == jax.dtypes.float0:  # JAX has a class of its own for these
        return np.zeros(leaf.shape, np.bool_)
    return jax.random.key_data(leaf) if isinstance(leaf, jax.Array) and is_key(leaf) else native(leaf)


def native(leaf: Any) -> Any:
    """An array in the byte order of this machine, as JAX takes no other (FITS files have). Else unchanged."""
    other = isinstance(leaf, np.ndarray) and not leaf.dtype.isnative
    return leaf.astype(leaf.dtype.newbyteorder("=")) if other else leaf


def plain_like(like: Any) -> Any:
    """The shape and dtype of `plain(array)` for an array with the shape and dtype of `like`."""
    if like.dtype == jax.dtypes.float0:
        return jax.ShapeDtypeStruct(like.shape, np.bool_)
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype)) if is_key(like) else like


def unplain(value: np.ndarray, like: Any) -> Any:
    """The inverse of `plain`. like: the shape and dtype of the result; the first axis may have another length."""
    if like.dtype == jax.dtypes.float0:
        return np.zeros(value.shape, jax.dtypes.float0)
    return jax.random.wrap_key_data(jnp.asarray(value), impl=implementation(like)) if is_key(like) else value


def implementation(like: Any) -> Any:
    """The random number generator to which keys of that dtype belong."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct(like.shape, like.dtype))
    return found[0]


def cotangent(shapes: Any) -> Any:
    """The shapes and dtypes of the cotangents of arrays: float0 for integers and bools.

    Arguments:
        shapes: a tree of arrays or jax.ShapeDtypeStructs.

    Returns: a tree of jax.ShapeDtypeStruct.
    """

    def leaf(like: Any) -> jax.ShapeDtypeStruct:
        differentiable = jnp.issubdtype(like.dtype, jnp.inexact)
        return jax.ShapeDtypeStruct(like.shape, like.dtype if differentiable else jax.dtypes.float0)

    return jax.tree.map(leaf, shapes)


def check_usable(name: str, leaf: Any) -> None:
    """Raises BadInput for a masked array, a shape without numbers, or a deleted array. name: for the message."""
    if isinstance(leaf, np.ma.MaskedArray):
        raise BadInput(f"{name}: {shown(leaf)} is a masked array, which JAX cannot use. Fill it: array.filled(0), say.")
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise BadInput(f"{name}: {shown(leaf)} is only a shape, without numbers in it. Give an array.")
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted():
        fact = f"{name}: {shown(leaf)} has been deleted or donated, so there are no numbers in it any more"
        raise BadInput(f"{fact}. Give an array that still exists.")


def shown(leaf: Any) -> str:
    """An array's dtype and shape, such as float32[8, 3]."""
    return f"{leaf.dtype}{list(leaf.shape)}"
