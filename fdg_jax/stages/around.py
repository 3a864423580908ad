"""Modules that wrap another module and keep the names of its variables. `fdg_jax.stage` and `fdg_jax.tie` make them."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

Path = tuple[Any, ...]  # of a module or an array in nested dictionaries of variables


class Held:
    """Holds a module in a field of another module without making it a submodule."""

    def __init__(self, module: nn.Module):
        self.module = module


class Around(nn.Module):
    """A module that wraps another one. The inner module's variables keep their names."""

    held: Held
    passes_train_on = True  # hands `train` to its parts, and does nothing else with it

    @property
    def inner(self) -> nn.Module:
        """The inner module, for one call."""
        return self.held.module.clone(parent=self.scope)


def name_of(module: nn.Module) -> str:
    """The name of a module's class; for a wrapper, that of the inner module."""
    return name_of(module.held.module) if isinstance(module, Around) else type(module).__name__


def found(tree: Any, path: Path) -> Any:
    """The entry at a path in nested dictionaries; None if there is no entry."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree
