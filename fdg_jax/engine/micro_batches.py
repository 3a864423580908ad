"""Splits a batch into M micro-batches on its way in, and joins their M losses on the way out (GPipe).

The parts are as equal as possible. Each is weighted by its share of the examples, or of their weights. The backward
pass of a part's mean loss begins with this share as its cotangent, so the parts' gradients add up to the gradient of
the batch's mean.
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
    """Splits one batch at a time, all within a tick. M = 1 leaves everything as it is.

    Arguments:
        M: number of parts.
        last: the place of stage K; None if that is in another process.
        told: the place where this process gets the losses.
        dtype: of the loss.
    """

    def __init__(self, M: int, last: Place | None, told: Place, dtype: Any):
        self.M, self.last, self.told, self.dtype = M, last, told, dtype
        self._cut = programs.jit(partial(cut, M=M))
        self._mean = programs.jit(lambda shares, reports: jax.tree.map(partial(weighted_sum, shares), *reports))
        self._by_weight = programs.jit(partial(shares_of_weights, M=M, dtype=dtype))
        self._shares: Any = None
        self._losses: list[Tree] = []

    def sizes(self, n: int) -> list[int]:
        """How many examples each part of a batch of n has. Raises BadInput if n is less than M."""
        if n < self.M:
            fact = f"a batch of {n} cannot be cut into {self.M} micro-batches"
            raise BadInput(f"{fact}. Use fewer micro-batches or larger batches.")
        return [end - start for start, end in pairwise(bounds(n, self.M))]

    def enter(self, x: Tree, labels: Tree, n: int) -> list[dict[str, Tree]]:
        """Splits a batch into the parts that enter the pipeline.

        Arguments:
            x: the inputs, on stage 1's device; None if that is in another process.
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
        """Drops the losses of a batch whose other parts will not come."""
        self._losses = []

    def loss(self, number: int, report: Tree) -> tuple[int, Tree] | None:
        """Takes the loss of a part.

        Arguments:
            number: the part's number, counted over all batches, from 1.
            report: its mean loss, or (that, metrics).

        Returns: (batch, its mean loss or (that, metrics)) if this was the batch's last part, else None.
        """
        if self.M == 1:
            return number, report
        self._losses.append(report)
        if number % self.M:
            return None
        whole, self._losses = self._mean(self._shares, self._losses), []
        return number // self.M, whole


def shares_of_weights(weights: jax.Array, M: int, dtype: Any) -> jax.Array:
    """The share of each part in the weight of a batch; equal shares if all weights are 0."""
    sums = jnp.stack([jnp.sum(part.astype(dtype)) for part in cut(weights, M)])
    total = jnp.sum(sums)
    return jnp.where(total > 0, sums / jnp.where(total > 0, total, 1), 1 / M).astype(dtype)
