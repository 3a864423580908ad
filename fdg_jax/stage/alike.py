"""Which blocks of a network are alike, so that each kind is looked at once."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import flax.linen as nn

T = TypeVar("T")


def alike(a: nn.Module, b: nn.Module) -> bool:
    """Whether two blocks have equal fields. Their texts do not tell: Flax prints a function by its name only."""
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # arrays as fields, say, have no single answer
        return False


class Kinds(Generic[T]):
    """What was found out about each kind of block."""

    def __init__(self) -> None:
        self.found: list[tuple[nn.Module, Any, T]] = []

    def of(self, block: nn.Module, rest: Any, find: Callable[[], T]) -> T:
        """What find() gives for a block, or gave for one that is alike with an equal `rest`."""
        for other, its, result in self.found:
            if its == rest and alike(block, other):
                return result
        self.found.append((block, rest, find()))
        return self.found[-1][2]
