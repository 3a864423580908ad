"""Converts trees of arrays to named arrays of plain numbers, as files store them, and back.

Two kinds of JAX arrays in a state are not numbers. A new-style random key (`jax.random.key`) becomes its uint32 words.
The cotangent of an integer has the dtype float0 and no content; it becomes an array of False of the same shape.

An array's name is its path in its tree, such as `params/block000/conv/kernel`. A slash within a key is written as %2F,
and a percent sign as %25. A second dictionary records containers that names cannot show: tuples, lists, None, integer
keys, and empty containers. Containers of other classes (`flax.struct` and the like) are read back as dictionaries of
their fields, because files store no code. Flax's boxes (`nn.Partitioned`) are read back as the arrays in them.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import jax
import jax.numpy as jnp
import numpy as np
from flax.core.meta import AxisMetadata
from flax.traverse_util import unflatten_dict
from jax.core import Tracer

from fdg_jax.errors import BadInput

Tree = Any
MAKERS: dict[str, Callable[[dict[str, Tree]], Tree]] = {
    "dict": dict,
    "none": lambda _: None,
    "list": lambda found: [found[str(number)] for number in range(len(found))],
    "tuple": lambda found: tuple(found[str(number)] for number in range(len(found))),
    "whole numbers": lambda found: {int(key): value for key, value in found.items()},
}


def is_key(array: Any) -> bool:
    """Whether an array, or a shape with a dtype, holds new-style random keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def plain(leaf: Any) -> Any:
    """Converts a leaf of a state into the stored form. Native numeric arrays and non-arrays are returned unchanged."""
    if getattr(leaf, "dtype", None) == jax.dtypes.float0:  # JAX has a class of its own for these
        return np.zeros(leaf.shape, np.bool_)
    return jax.random.key_data(leaf) if isinstance(leaf, jax.Array) and is_key(leaf) else native(leaf)


def native(leaf: Any) -> Any:
    """Converts a NumPy array to this machine's byte order, because JAX takes no other. Returns other values as is."""
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
    """The random number generator (JAX's `impl`) to which keys with the dtype of `like` belong."""
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
    """Raises BadInput for a masked array, a jax.ShapeDtypeStruct, or a deleted array. name: for the message."""
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


def flattened(tree: Tree, name: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """Flattens a tree into ({name: array}, {name: kind of container}).

    Kinds are the keys of `MAKERS`. Only containers that names cannot show have an entry. The arrays are in the order of
    jax.tree.leaves. name: a prefix for all names, followed by a slash; "" for none.
    """
    below = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]
    if below and not below[0][0]:  # no container
        return {name: tree}, {}
    arrays, kinds, kind = {}, {}, kind_of(tree, empty=not below)
    if kind and name:
        kinds[name] = kind
    for path, part in below:
        key = jax.tree_util.keystr(path, simple=True).replace("%", "%25").replace("/", "%2F")
        inner = name if isinstance(tree, AxisMetadata) else f"{name}/{key}" if name else key
        inner_arrays, inner_kinds = flattened(part, inner)
        arrays |= inner_arrays
        kinds |= inner_kinds
    return arrays, kinds


def kind_of(tree: Tree, empty: bool) -> str:
    """The kind of a container; "" if the names of its parts show it."""
    if tree is None:
        return "none"
    if type(tree) in (tuple, list):
        return type(tree).__name__
    if empty:
        return "dict"
    whole = isinstance(tree, Mapping) and all(type(key) is int for key in tree)
    return "whole numbers" if whole else ""


def unflattened(path: Any, arrays: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Tree]:
    """The inverse of `flattened`, for a dictionary. path: the file that it was read from, for the message.

    Raises BadInput if no tree has these names and kinds, because the file is damaged or forged.
    """

    def made(part: Tree, keys: tuple[str, ...]) -> Tree:
        if not isinstance(part, dict):
            return part
        found = {unquote(key): made(value, (*keys, key)) for key, value in part.items()}
        return MAKERS[kinds.get("/".join(keys), "dict") if keys else "dict"](found)

    try:
        if both := arrays.keys() & kinds.keys():
            raise ValueError(f"{min(both)} is both an array and a container of arrays")
        parts: dict[tuple[str, ...], Any] = {tuple(name.split("/")): {} for name in kinds}
        parts |= {tuple(name.split("/")): array for name, array in arrays.items()}
        return made(unflatten_dict(dict(sorted(parts.items(), key=lambda part: part[0]))), ())  # containers come first
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        raise BadInput(f"{path} is damaged: the names of its arrays do not form a tree. Write it again.") from None
