"""Modules around another one, whose variables keep their names: what `fdg_jax.stage` and `fdg_jax.tie` return."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

Path = tuple[Any, ...]  # of a module or an array in nested dictionaries of variables


class Held:
    """A module in a field of another one, whose submodule it is not."""

    def __init__(self, module: nn.Module):
        self.module = module


class Around(nn.Module):
    """A module around another one, whose variables it has under the same names."""

    held: Held
    passes_train_on = True  # hands `train` to its parts, and does nothing else with it

    @property
    def inner(self) -> nn.Module:
        """The other module, for a call."""
        return self.held.module.clone(parent=self.scope)


def name_of(module: nn.Module) -> str:
    """The name of a module's class; for a module around another one, that of the inner module."""
    return name_of(module.held.module) if isinstance(module, Around) else type(module).__name__


def found(tree: Any, path: Path) -> Any:
    """What lies in nested dictionaries at a path; None if nothing does."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree
