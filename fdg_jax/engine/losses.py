"""Losses, which are read late, so that the host never waits for a device."""

import math
import warnings
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fdg_jax.machine import jax_internals


class Metrics(NamedTuple):
    """step: the batch's number, from 1. loss: of that batch, at the weights it met. bad: of a guarded pipeline, per
    stage the number of its first update that was refused (0: none), as far as was known then."""

    step: int
    loss: float
    bad: tuple[int, ...] = ()


class LossWindow:
    """Reads losses late: only what is finished, or, beyond `limit` dispatches, the oldest one.

    The bound keeps the run-ahead on an accelerator finite; nothing else in the loop ever waits.
    """

    def __init__(self, limit: int):
        self.limit, self.finished = limit, list[Metrics]()
        self.pending = deque[tuple[int, jax.Array, Sequence[jax.Array]]]()

    def add(self, step: int, losses: jax.Array, bad: Sequence[jax.Array] = ()) -> None:
        """losses [] of batch `step`, or [W] of the batches from `step` on; bad: of the stages in order."""
        self.pending.append((step, losses, bad))
        while self.pending and (len(self.pending) > self.limit or self.ready(*self.pending[0][1:])):
            self.read()

    def ready(self, losses: jax.Array, bad: Sequence[jax.Array]) -> bool:
        return jax_internals.is_ready(losses) and all(map(jax_internals.is_ready, bad))

    def read(self) -> None:
        step, losses, bad = self.pending[0]
        # This may wait, so it is where Ctrl-C comes. Nothing is lost then.
        losses, *bad = jax_internals.fetch([losses, *bad])
        refused = tuple(int(number) for stages in bad for number in np.ravel(stages))
        read = [Metrics(step + i, float(loss), refused) for i, loss in enumerate(np.ravel(losses))]
        self.pending.popleft()
        self.finished += read

    def read_all(self) -> None:
        while self.pending:
            self.read()

    def take(self) -> list[Metrics]:
        taken, self.finished = self.finished, []
        return taken


def warn_of_lost(finished: Sequence[Metrics]) -> bool:
    """Whether one of the losses is not finite. Then a warning names its batch."""
    lost = next((metrics for metrics in finished if not math.isfinite(metrics.loss)), None)
    if lost is not None:
        warnings.warn(
            f"the loss of batch {lost.step:,} is {lost.loss}. Look for a NaN in the data, labels outside the classes "
            "or a learning rate that is too high. unsound(batch) names the stage; guard=True keeps such gradients from "
            "the weights. This is said once.",
            stacklevel=4,
        )
    return lost is not None
