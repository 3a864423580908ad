"""Parts of a batch, as equal as can be, and what belongs to the whole batch of what was computed of them."""

from collections.abc import Sequence
from typing import Any

import jax

Tree = Any


def bounds(n: int, M: int) -> list[int]:
    """Where M parts of n things begin and end. They are as equal as can be, the larger ones first."""
    return [m * (n // M) + min(m, n % M) for m in range(M + 1)]


def cut(tree: Tree, M: int) -> list[Tree]:
    """Splits arrays into M parts along their first axis."""

    def part(leaf, m):
        at = bounds(len(leaf), M)
        return leaf[at[m] : at[m + 1]]

    return [jax.tree.map(lambda leaf, m=m: part(leaf, m), tree) for m in range(M)]


def weighted_sum(shares: Sequence[jax.Array] | jax.Array, *parts: jax.Array) -> jax.Array:
    """The mean of a batch from the means of its parts."""
    return sum(share * part for share, part in zip(shares, parts, strict=True))  # type: ignore[return-value]
