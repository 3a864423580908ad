"""Splits each entering batch into M micro-batches, and combines their M losses into the loss of the batch (GPipe).

The sizes of the micro-batches differ by at most one. Each has a share: its fraction of the batch's examples, or of
their weights. The backward pass of a micro-batch's mean loss starts with this share as its cotangent. So the gradients
of the micro-batches add up to the gradient of the mean loss of the batch.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdg_jax.errors import BadInput
from fdg_jax.machine import programs
from fdg_jax.stages.weighted import batch_weights, bounds, cut, weighted_sum
from fdg_jax.transport.devices import Place

Tree = Any


class MicroBatches:
    """Splits one batch at a time, and combines the losses of its parts, the micro-batches. With M = 1 batches and
    losses are passed on unchanged.

    Arguments:
        M: number of parts.
        last: the place of stage K; None if stage K is in another process.
        told: the place where this process receives the losses.
        dtype: the dtype of the loss.
    """

    def __init__(self, M: int, last: Place | None, told: Place, dtype: Any):
        self.M, self.last, self.told, self.dtype = M, last, told, dtype
        self._cut = programs.jit(partial(cut, M=M))
        self._mean = programs.jit(lambda shares, reports: jax.tree.map(partial(weighted_sum, shares), *reports))
        self._by_weight = programs.jit(partial(shares_of_weights, M=M, dtype=dtype))
        self._shares: Any = None
        self._losses: list[Tree] = []

    def sizes(self, n: int) -> list[int]:
        """The number of examples in each part of a batch of n examples. Raises BadInput if n is less than M."""
        if n < self.M:
            fact = f"a batch of {n} cannot be cut into {self.M} micro-batches"
            raise BadInput(f"{fact}. Use fewer micro-batches or larger batches.")
        return [end - start for start, end in pairwise(bounds(n, self.M))]

    def enter(self, x: Tree, labels: Tree, n: int) -> list[dict[str, Tree]]:
        """Splits a batch into the parts that enter the pipeline.

        Arguments:
            x: the inputs, on stage 1's device; None if stage 1 is in another process.
            labels: the labels.
            n: the number of examples.

        Returns: {"x": ..., "labels": ..., "dy": the part's share} for each part.
        """
        if self.M == 1:
            return [{"x": x, "labels": labels}]
        sizes = np.array(self.sizes(n))
        shares = (sizes / sizes.sum()).astype(self.dtype)
        weights = batch_weights(labels)
        if weights is not None:
            shares = self._by_weight(self.told.put_weights(weights))
        self._shares = self.told.put_weights(shares)
        labels = self.last.put_batch(labels) if self.last else None
        parts = zip(self._cut(x), self._cut(labels), shares, strict=True)
        return [{"x": x, "labels": y, "dy": share} for x, y, share in parts]

    def forget(self) -> None:
        """Discards the losses of an incomplete batch."""
        self._losses = []

    def loss(self, number: int, report: Tree) -> tuple[int, Tree] | None:
        """Takes the loss of a part.

        Arguments:
            number: the part's number, counted over all batches, from 1.
            report: the part's mean loss, or (mean loss, metrics).

        Returns: if this was the last part of its batch, (number of the batch, its mean loss or (mean loss, metrics));
        else None.
        """
        if self.M == 1:
            return number, report
        self._losses.append(report)
        if number % self.M:
            return None
        whole, self._losses = self._mean(self._shares, self._losses), []
        return number // self.M, whole


def shares_of_weights(weights: jax.Array, M: int, dtype: Any) -> jax.Array:
    """The fraction of a batch's weight in each of its M parts; equal fractions if all weights are 0."""
    sums = jnp.stack([jnp.sum(part.astype(dtype)) for part in cut(weights, M)])
    total = jnp.sum(sums)
    return jnp.where(total > 0, sums / jnp.where(total > 0, total, 1), 1 / M).astype(dtype)
