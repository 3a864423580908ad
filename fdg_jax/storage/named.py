"""A tree as named arrays, as a file holds them, and back.

An array's name is its path, `params/block000/conv/kernel`. A slash within a key is written as %2F, and a percent sign
as %25. What names do not show is told beside them: tuples, lists, None, whole numbers as keys, and what is empty. Other
containers have a class of their own (`flax.struct` and the like), and no file holds code: they come back as
dictionaries of their fields. Boxes of Flax (`nn.Partitioned`) come back as the arrays in them.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import jax
from flax.core.meta import AxisMetadata
from flax.traverse_util import unflatten_dict

from fdg_jax.errors import BadInput

Tree = Any
MAKERS: dict[str, Callable[[dict[str, Tree]], Tree]] = {
    "dict": dict,
    "none": lambda _: None,
    "list": lambda found: [found[str(number)] for number in range(len(found))],
    "tuple": lambda found: tuple(found[str(number)] for number in range(len(found))),
    "whole numbers": lambda found: {int(key): value for key, value in found.items()},
}


def flattened(tree: Tree, name: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """({name: array}, {name: kind of container}). Only containers that names do not show have a kind, of `MAKERS`.

    The arrays are in the order of jax.tree.leaves. name: of the tree; its parts begin with it and a slash.
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
    """The kind of a container, "" if names show it."""
    if tree is None:
        return "none"
    if type(tree) in (tuple, list):
        return type(tree).__name__
    if empty:
        return "dict"
    whole = isinstance(tree, Mapping) and all(type(key) is int for key in tree)
    return "whole numbers" if whole else ""


def unflattened(path: Any, arrays: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Tree]:
    """The inverse of `flattened`, of a dictionary that is read from the file at this path.

    Raises BadInput if there is none with these names and kinds: somebody made them up.
    """

    def made(part: Tree, keys: tuple[str, ...]) -> Tree:
        if not isinstance(part, dict):
            return part
        found = {unquote(key): made(value, (*keys, key)) for key, value in part.items()}
        return MAKERS[kinds.get("/".join(keys), "dict") if keys else "dict"](found)

    try:
        if both := arrays.keys() & kinds.keys():
            raise ValueError(f"{min(both)} is an array and a container")
        parts: dict[tuple[str, ...], Any] = {tuple(name.split("/")): {} for name in kinds}
        parts |= {tuple(name.split("/")): array for name, array in arrays.items()}
        return made(unflatten_dict(dict(sorted(parts.items(), key=lambda part: part[0]))), ())  # containers come first
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        raise BadInput(f"{path} is damaged: the names of its arrays make no tree. Write it again.") from None
