"""Labels with a weight for every example or every token, so that padding, masks and repeated examples count correctly
in the loss and in every average over batches. Also cuts batches into parts, each weighted by its share.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Tree = Any
Array = jax.Array


class Weighted(NamedTuple):
    """Labels with their weights: the labels of a batch, or a part of them. The loss gets this object, too. In averages
    over batches, a batch with one `Weighted` in its labels counts by these weights. With several `Weighted`, it counts
    by its number of examples.

    labels: the labels themselves, a tree of arrays [batch, ...].
    weights: a number of 0 or more for each example [batch] or token [batch, T]. The labels' shape begins with the shape
        of the weights.

    Example: `loss = lambda outputs, labels: labels.mean(cross_entropy(outputs, labels.labels))`, with a cross-entropy
    that gives a number for each label.
    """

    labels: Tree
    weights: Array

    def mean(self, values: Array) -> Array:
        """The weighted mean: sum(weights * values) / sum(weights), and 0 where all weights are 0.

        Arguments:
            values: one number for each weight, or several numbers [*weights.shape, ...] that share a weight. A value
                with weight 0 may be anything: optax's cross-entropy of a label such as -100, a usual mark of padding,
                is NaN.
        """
        weights = self.spread(values.shape, jnp.promote_types(values.dtype, jnp.float32))
        total, counted = jnp.sum(weights), jnp.where(weights == 0, 0, values)
        return jnp.sum(weights * counted) / jnp.where(total > 0, total, 1)

    def spread(self, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        """The weights, broadcast to `shape`, which begins with the weights' shape."""
        weights = jnp.asarray(self.weights, dtype)
        more = len(shape) - weights.ndim
        return jnp.broadcast_to(weights.reshape(*weights.shape, *[1] * more), shape)


def is_weighted(tree: Tree) -> bool:
    """Whether this is labels with their weights."""
    return isinstance(tree, Weighted)


def without_weights(labels: Tree) -> Tree:
    """The labels without their weights, if they have any."""
    return jax.tree.map(lambda each: each.labels if is_weighted(each) else each, labels, is_leaf=is_weighted)


def all_weighted(labels: Tree) -> list[Weighted]:
    """Every `Weighted` in a tree of labels."""
    return [each for each in jax.tree.leaves(labels, is_leaf=is_weighted) if is_weighted(each)]


def batch_weights(labels: Tree) -> Any:
    """The weights by which a batch counts. None if its labels have no `Weighted` or several; the batch then counts by
    its examples."""
    found = all_weighted(labels)
    return found[0].weights if len(found) == 1 else None


def bounds(n: int, M: int) -> list[int]:
    """Where M parts of n items begin and end. The parts are as equal as possible, the larger ones first."""
    return [m * (n // M) + min(m, n % M) for m in range(M + 1)]


def cut(tree: Tree, M: int) -> list[Tree]:
    """Splits arrays into M parts along their first axis."""

    def part(leaf, m):
        at = bounds(len(leaf), M)
        return leaf[at[m] : at[m + 1]]

    return [jax.tree.map(lambda leaf, m=m: part(leaf, m), tree) for m in range(M)]


def weighted_sum(shares: Sequence[Any] | jax.Array, *parts: jax.Array) -> jax.Array:
    """The mean of a batch from the means of its parts."""
    return sum(share * part for share, part in zip(shares, parts, strict=True))  # type: ignore[return-value]
