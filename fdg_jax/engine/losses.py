"""Reads losses from the devices late, so that the host does not wait for a device."""

import math
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax

from fdg_jax.machine import jax_internals

MOST_KEPT = 100_000  # the most losses kept for a caller who never takes them


class Metrics(NamedTuple):
    """The result of one batch.

    step: the batch's number, from 1.
    loss: the batch's loss, at the weights of its forward pass.
    bad: for each stage of a guarded pipeline, the number of its first skipped update before this loss was computed;
        0 if there is none.
    metrics: the numbers that the loss function returned beside the loss, {name: number}.
    gradient_norms: with `Pipeline(gradient_norms=True)`, for each stage the norm of the gradient of its last update
        before this loss was computed; 0 before its first update. It is measured before beta and the optimizer change
        the gradient. The gradients of different stages are of different batches.
    """

    step: int
    loss: float
    bad: tuple[int, ...] = ()
    metrics: Mapping[str, float] = {}
    gradient_norms: tuple[float, ...] = ()


class Results(NamedTuple):
    """The results of a dispatch, from which `Metrics` are made: arrays [] for one batch, or [W] for W batches. They may
    not have been computed yet.

    losses, norms, metrics: as in `Metrics`; norms have one array per stage.
    bad: as in `Metrics`: one array per guarded stage, or one array for all of them.
    """

    losses: jax.Array
    bad: Sequence[jax.Array] = ()
    norms: Sequence[jax.Array] = ()
    metrics: Mapping[str, jax.Array] = {}


class Losses:
    """The losses of a pipeline: first as arrays on the devices, then on the host until the caller takes them.

    `add` reads losses that have been computed. If more than `limit` dispatches are unread, it waits for the oldest, so
    the limit bounds how far the host runs ahead of the devices. Nothing else in the loop waits.

    limit: the most dispatches that may be unread.
    early: whether losses are read as soon as they have been computed. If False, they are read only when the limit is
        reached, which happens after the same batch in every process of a pipeline.
    warned: whether the warning about a non-finite loss has been given. If it is True from the start, none is given.
    pending: (number of the first batch, results) of each dispatch that has not been read.
    finished: the metrics that have been read but not yet taken.
    last, lost: the newest finished metrics, and the first metrics with a non-finite loss; None if there are none yet.
    """

    def __init__(self, limit: int, early: bool = True, warned: bool = False):
        self.limit, self.early, self.warned = limit, early, warned
        self.pending = deque[tuple[int, Results]]()
        self.finished: deque[Metrics] = deque(maxlen=MOST_KEPT)
        self.last: Metrics | None = None
        self.lost: Metrics | None = None

    def add(self, step: int, results: Results) -> None:
        """Adds the results of a dispatch, then reads finished results. step: the number of the dispatch's first
        batch."""
        self.pending.append((step, results))
        while self.pending and (len(self.pending) > self.limit or (self.early and self.ready())):
            self.read()

    def ready(self) -> bool:
        """Whether the oldest results have been computed."""
        return all(map(jax_internals.is_ready, jax.tree.leaves(self.pending[0][1])))

    def read(self) -> None:
        """Reads the oldest results, and waits for them if they are not finished."""
        step, results = self.pending[0]
        leaves, structure = jax.tree.flatten(results)
        # The fetch may wait and may be interrupted by Ctrl-C. Up to there, nothing has been removed from `pending`.
        flat = [array.reshape(-1) for array in jax_internals.fetch(leaves)]
        losses, bad, norms, metrics = jax.tree.unflatten(structure, flat)
        refused = tuple(int(number) for stages in bad for number in stages)
        self.pending.popleft()
        for i, loss in enumerate(losses.tolist()):
            values = {name: float(value[i]) for name, value in metrics.items()}
            self.last = Metrics(step + i, loss, refused, values, tuple(float(norm[i]) for norm in norms))
            self.lost = self.lost if self.lost or math.isfinite(loss) else self.last
            self.finished.append(self.last)

    def read_all(self) -> None:
        """Reads all losses, and waits for them."""
        while self.pending:
            self.read()

    def newest(self) -> Metrics | None:
        """The newest finished metrics; None before the first."""
        return self.last

    def take(self) -> list[Metrics]:
        """Removes and returns the metrics that have been read, in order."""
        taken = list(self.finished)
        self.finished.clear()
        return taken

    def warn(self) -> None:
        """Warns once about a finished loss that is NaN or infinite. Call this method before changing anything, because
        a filter may turn the warning into an error."""
        if self.lost is None or self.warned:
            return
        self.warned = True
        warnings.warn(
            f"the loss of batch {self.lost.step:,} is {self.lost.loss}. Usual causes: NaN in the data, labels outside "
            "the classes, a learning rate that is too high. first_nonfinite(batch) names the stage. guard=True keeps "
            "such gradients from the weights. This warning comes only once.",
            stacklevel=3,
        )
