"""Weights that two stages would share: plain Flax has them once, and every stage would train a copy of its own.

Within a stage they stay shared. Between stages they are refused, since a stage's weights lie on its device.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
from flax import nnx

from fdg_jax.errors import BadInput
from fdg_jax.stage.from_nnx import Given

Tree = Any
Path = tuple[str, ...]
Owners = dict[int, tuple[Any, str]]  # by id of a module or of an nnx variable: (what has it, that in words)
WAY_OUT = (
    "For weights of their own, make an object for each, as in [nn.Dense(4) for _ in range(3)]. To share them, have "
    "both uses in one stage and, of flax.nnx, in one from_nnx. Or let one stage own the weights and pass them on "
    "beside its outputs, as the embedding of fdg_jax/models/transformer.py does for --tied."
)


def check_shared(owners: Owners, who: str, module: nn.Module, variables: Mapping[str, Tree]) -> None:
    """Raises BadInput if a part of a stage's module that has variables is a part of an earlier stage, too.

    Arguments:
        owners: of the parts of earlier stages; those of this one are added.
        who: the stage, in words.
        module, variables: the stage's module, and its Flax variables.
    """
    for part, path in parts(module):
        trees = [part] if isinstance(part, Given) else [found(tree, path) for tree in variables.values()]
        if not any(trees):
            continue
        own = nnx_variables(part.module) if isinstance(part, Given) else {id(part): type(part).__name__}
        owner = id(part) if isinstance(part, Given) else (who, path)  # shared within a stage, it has one path there
        for key, kind in own.items():
            other, there = owners.setdefault(key, (owner, who))
            if other != owner:
                where = f"{there} and {who}" if there != who else f"two parts of {who}"
                fact = f"{where} have one object in common, a {kind}, and would each train weights of their own for it"
                raise BadInput(f"{fact}. {WAY_OUT}")


def parts(value: Any, path: Path = ()) -> Iterator[tuple[Any, Path]]:
    """(part, its path in the variables) of a module's parts: itself, modules in its fields, and nnx modules."""
    if isinstance(value, Given):
        yield value, path
    elif isinstance(value, nn.Module):
        yield value, path
        named = getattr(value, "named_blocks", None)
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        inner = named() if named else [each for each in fields.items() if each[0] not in ("parent", "name")]
        for name, each in inner:
            yield from parts(each, (*path, name))
    elif isinstance(value, list | tuple | Mapping) and path:
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from parts(each, (*path[:-1], f"{path[-1]}_{key}"))


def found(tree: Any, path: Path) -> Any:
    """What lies in nested dictionaries at a path; None if nothing does."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def nnx_variables(module: nnx.Module) -> dict[int, str]:
    """{id: type's name} of an nnx module's variables, without random streams."""
    nodes = (node for _, node in nnx.iter_graph(module))
    return {id(v): type(v).__name__ for v in nodes if isinstance(v, nnx.Variable) and not isinstance(v, nnx.RngState)}
