"""Algorithm I on one page: the host loop. It dispatches and never waits.

All knowledge of who does what when is in the schedule; all knowledge of how is in the stages. Messages lie in
mailboxes keyed by (what, stage, batch): an operation that comes too early finds its box empty, so a wrong
schedule is an immediate error and never a wrong number.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Box(NamedTuple):
    """The address of a message: `what` is "x" (activations in), "dy" (cotangents in) or "labels"."""

    what: str
    k: int
    batch: int


class HostLoop:
    """Runs the *local* stages of a schedule; several loops can share one pipeline.

    schedule: a fdg_jax.schedule.Schedule. stages: {k: stage} with forward(batch, x, labels) and backward(batch, dy).
    send(box, array): starts an asynchronous copy to stage box.k and returns the array there, at once. For a stage of
    another loop it delivers into that loop's mail instead, and what it returns is not used.
    on_loss(batch, loss): is handed every loss, an array that may not have been computed yet.
    """

    def __init__(self, schedule, stages: dict[int, Any], send: Callable, on_loss: Callable[[int, Any], None]):
        self.schedule, self.stages, self.send, self.on_loss = schedule, stages, send, on_loss
        self.t = 0  # ticks done since the pipeline was last empty; batch t enters at tick t
        self.mail: dict[Box, Any] = {}

    def step(self, x, labels) -> None:
        """One tick, in which a new batch enters: x lies on stage 1, labels on stage K."""
        for box, message in ((Box("x", 1, self.t + 1), x), (Box("labels", self.schedule.K, self.t + 1), labels)):
            if box.k in self.stages:
                self.mail[box] = message
        self.tick(self.t + 1, None)

    def drain(self) -> None:
        """The ticks after the last batch, until it has updated every stage. The pipeline is then empty, t = 0."""
        last = self.t
        for t in range(last + 1, self.schedule.ticks(last) + 1):
            self.tick(t, last)
        self.t = 0

    def tick(self, t: int, last: int | None) -> None:
        K = self.schedule.K
        for kind, k, batch in self.schedule.tick(t, last):
            stage = self.stages.get(k)
            if stage is None:  # another loop has it
                continue
            if kind == "F":
                labels = self.take("labels", k, batch, t) if k == K else None
                y = stage.forward(batch, self.take("x", k, batch, t), labels)
                if k < K:
                    self.post(Box("x", k + 1, batch), y)
                else:
                    self.on_loss(batch, y)
            else:
                dy = self.take("dy", k, batch, t) if k < K else None  # the loss's own cotangent is 1
                dx = stage.backward(batch, dy)
                if k > 1:
                    self.post(Box("dy", k - 1, batch), dx)
        self.t = t

    def post(self, box: Box, message) -> None:
        message = self.send(box, message)
        if box.k in self.stages:
            self.mail[box] = message

    def take(self, what: str, k: int, batch: int, t: int):
        try:
            return self.mail.pop(Box(what, k, batch))
        except KeyError:
            raise AssertionError(
                f"at t={t} stage k={k} needs {what} of batch {batch}, which has not been sent "
                f"(schedule {self.schedule.name}, K={self.schedule.K}; in the mail: {sorted(self.mail)})"
            ) from None
