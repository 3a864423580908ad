"""Arrays that are not what they look like: refused, or made into plain numbers, which any file can hold.

Of what goes into a state two kinds of JAX arrays are no numbers. A random key of the new kind (`jax.random.key`)
becomes its uint32 words. The cotangent of an integer has the dtype float0 and nothing in it; it becomes False
everywhere, which keeps its shape.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fdg_jax.errors import BadInput


def is_key(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def plain(leaf: Any) -> Any:
    """An array as it is stored. Whatever is no array, or is one of numbers already, stays what it is."""
    if getattr(leaf, "dtype", None) == jax.dtypes.float0:  # JAX has a class of its own for these
        return np.zeros(leaf.shape, np.bool_)
    return jax.random.key_data(leaf) if isinstance(leaf, jax.Array) and is_key(leaf) else leaf


def plain_like(like: Any) -> Any:
    """Shape and dtype of what `plain` makes of an array like this one."""
    if like.dtype == jax.dtypes.float0:
        return jax.ShapeDtypeStruct(like.shape, np.bool_)
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype)) if is_key(like) else like


def unplain(value: np.ndarray, like: Any) -> Any:
    """The inverse of `plain`, for an array that is to be like this one; the first axis may be of another length."""
    if like.dtype == jax.dtypes.float0:
        return np.zeros(value.shape, jax.dtypes.float0)
    return jax.random.wrap_key_data(jnp.asarray(value), impl=implementation(like)) if is_key(like) else value


def implementation(like: Any) -> Any:
    """Which random number generator the keys of that dtype belong to."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct(like.shape, like.dtype))
    return found[0]


def cotangent(shapes: Any) -> Any:
    """Shapes and dtypes of the cotangents of such arrays: float0 for integers and truth values."""

    def leaf(like: Any) -> jax.ShapeDtypeStruct:
        differentiable = jnp.issubdtype(like.dtype, jnp.inexact)
        return jax.ShapeDtypeStruct(like.shape, like.dtype if differentiable else jax.dtypes.float0)

    return jax.tree.map(leaf, shapes)


def check_usable(name: str, leaf: Any) -> None:
    """Raises BadInput for arrays that look like others but that nothing can be computed with."""
    if isinstance(leaf, np.ma.MaskedArray):
        raise BadInput(f"{name}: {shown(leaf)} is a masked array, which JAX cannot use. Fill it: array.filled(0), say.")
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise BadInput(f"{name}: {shown(leaf)} is only a shape, without numbers in it. Give an array.")
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted():
        fact = f"{name}: {shown(leaf)} has been deleted or donated, so there are no numbers in it any more"
        raise BadInput(f"{fact}. Give an array that still exists.")


def shown(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
