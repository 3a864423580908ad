"""Model families, one file each: the models' names, their blocks, and where the paper's authors split them.

Nothing needs to be registered: a file with a `NAMES` table is a family (`Family` says what else it has). Shared layers
are in `fdg_jax.layers`. A network is a flat list of blocks, because it can be split between any two of them: block 0 is
the stem, then there is one for each residual block, and the last is the head.
"""

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

import flax.linen as nn

from fdg_jax.errors import BadInput, did_you_mean


class Family(Protocol):
    """What a file of this folder has.

    NAMES: {name on the command line: arguments of `blocks`}.
    PAPER_SPLITS: {(name, K): first block numbers of stages 2..K}, as far as the authors give splits.
    blocks(classes, **arguments): the blocks, linen modules `__call__(x, train)`, x float32 [b, h, w, c].
    arguments(name): optional; the arguments for names that are not in NAMES (any depth or width), None for names of
        other families.
    PATTERNS: optional; how such names are written, for people: `wrn<d>_<k>`.
    """

    NAMES: Mapping[str, Mapping[str, Any]]
    PAPER_SPLITS: Mapping[tuple[str, int], tuple[int, ...]]

    def blocks(self, classes: int, **arguments: Any) -> list[nn.Module]: ...


@cache
def _families() -> tuple[Family, ...]:
    """The files of this folder that have NAMES."""
    files = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = (import_module(f"{__name__}.{file}") for file in files)
    return tuple(cast(Family, module) for module in modules if hasattr(module, "NAMES"))


def _find(name: str) -> tuple[Family, Mapping[str, Any]]:
    """(the family of a model, its arguments). Raises BadInput, naming similar models."""
    for family in _families():
        if name in family.NAMES:
            return family, family.NAMES[name]
        arguments = getattr(family, "arguments", lambda _: None)(name)
        if arguments is not None:
            return family, arguments
    known = [*names(), *(pattern for family in _families() for pattern in getattr(family, "PATTERNS", ()))]
    raise BadInput(f"model {name!r} is not known.{did_you_mean(name, names())} There are {', '.join(known)}.")


def names() -> list[str]:
    """The names of all models in the families' tables. Some families know further names, such as wrn40_4."""
    return [name for family in _families() for name in family.NAMES]


def blocks(name: str, classes: int) -> list[nn.Module]:
    """The blocks of a model.

    Arguments:
        name: the model.
        classes: number of classes.

    Returns: linen modules `__call__(x, train)`: the first takes images [b, h, w, c], the last gives logits
    [b, classes].

    Raises:
        BadInput: there is no such model; the message names similar ones.
    """
    family, arguments = _find(name)
    return family.blocks(classes, **arguments)


def paper_split(name: str, K: int) -> tuple[int, ...] | None:
    """The split in the authors' released code.

    Arguments:
        name: the model.
        K: number of stages.

    Returns: the first block numbers of stages 2..K; None if they give no split.

    Raises:
        BadInput: there is no such model.
    """
    family, _ = _find(name)
    return () if K == 1 else family.PAPER_SPLITS.get((name, K))
