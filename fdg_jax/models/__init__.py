"""A model family is one file here: the names it answers to, its blocks, and where the paper's authors cut it.

Nothing needs to be registered: a file with a `NAMES` table is a family (see `Family` for what else it has); the
layers they share are in `fdg_jax.layers`. A network is a flat list of blocks because that is what can be cut:
block 0 is the stem, then one per residual block, and the last is the head.
"""

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

import flax.linen as nn

from fdg_jax.errors import BadInput, did_you_mean


class Family(Protocol):
    """What a file of this folder offers.

    NAMES: command-line name -> arguments of `blocks`.
    PAPER_SPLITS: (name, K) -> the first block numbers of stages 2..K, where the authors give a split.
    blocks(classes, **arguments): linen modules `__call__(x, train)`, x float32 [b, h, w, c].
    arguments(name): optional, for names beside NAMES (any depth or width); None where a name is not its own.
    PATTERNS: optional, how the names that `arguments` knows are written, for people: `wrn<d>_<k>`.
    """

    NAMES: Mapping[str, Mapping[str, Any]]
    PAPER_SPLITS: Mapping[tuple[str, int], tuple[int, ...]]

    def blocks(self, classes: int, **arguments: Any) -> list[nn.Module]: ...


@cache
def _families() -> tuple[Family, ...]:
    files = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = (import_module(f"{__name__}.{file}") for file in files)
    return tuple(cast(Family, module) for module in modules if hasattr(module, "NAMES"))


def _find(name: str) -> tuple[Family, Mapping[str, Any]]:
    for family in _families():
        if name in family.NAMES:
            return family, family.NAMES[name]
        arguments = getattr(family, "arguments", lambda _: None)(name)
        if arguments is not None:
            return family, arguments
    known = [*names(), *(pattern for family in _families() for pattern in getattr(family, "PATTERNS", ()))]
    raise BadInput(f"model {name!r} is not known.{did_you_mean(name, names())} There are {', '.join(known)}.")


def names() -> list[str]:
    """Every model named in a family's table. (A family may answer to more of them: wrn40_4.)"""
    return [name for family in _families() for name in family.NAMES]


def blocks(name: str, classes: int) -> list[nn.Module]:
    """The network as blocks 0, 1, ..., each `__call__(x, train)`. BadInput names the nearest models."""
    family, arguments = _find(name)
    return family.blocks(classes, **arguments)


def paper_split(name: str, K: int) -> tuple[int, ...] | None:
    """The first block numbers of stages 2..K in the authors' released code; None where they give none."""
    family, _ = _find(name)
    return () if K == 1 else family.PAPER_SPLITS.get((name, K))
