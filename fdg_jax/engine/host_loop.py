"""The host loop runs any schedule; with FDG's it is Algorithm I on one page. It dispatches and never waits for a
message. Only who takes the losses may wait, for the oldest of more than `read_behind` (fdg_jax.engine.losses).

The schedule knows who does what when, and who writes to whom; the stages know how. A message lies in the mailbox (what,
stage, batch). An operation that comes too early finds its box empty: an error at once, and never a wrong number.
"""

from collections.abc import Callable
from typing import Any


class HostLoop:
    """Runs the *local* stages of a schedule; several loops, in one process or in several, can share one pipeline.

    Each walks the whole schedule. For an operation of another loop's stage, it passes on None as the messages.

    stages: {k: stage}, with run(kind, batch, {what: message}) -> {what: message}.
    send(box, message, giver): starts to copy a message to stage box.k and returns it as it will be there, or None if
        that stage is another loop's. It does not wait. giver: the operation; None for what enters.
    on_loss(batch, loss): is called with every loss, an array that may not have been computed yet.
    """

    def __init__(self, schedule, stages: dict[int, Any], send: Callable, on_loss: Callable[[int, Any], None]):
        self.schedule, self.stages, self.send, self.on_loss = schedule, stages, send, on_loss
        self.t = 0  # ticks done since the pipeline was last empty; until `drain` a new batch enters at every tick
        self.mail: dict[Any, Any] = {}

    def feed(self, parts) -> None:
        """Does one tick, in which a batch enters: {"x": ..., "labels": ...} of each micro-batch (mostly one)."""
        for number, part in enumerate(parts, self.t * self.schedule.micro_batches + 1):
            for box in self.schedule.messages.enters(number):
                if box.k in self.stages:
                    self.post(box, part[box.what], None)
        self.tick(self.t + 1, None)

    def drain(self) -> None:
        """Does the ticks after the last batch, until it has updated every stage. The pipeline is then empty, t = 0."""
        last = self.t
        for t in range(last + 1, self.schedule.ticks(last) + 1):
            self.tick(t, last)
        self.t = 0

    def tick(self, t: int, last: int | None) -> None:
        """Dispatches the operations of tick t; last: the final batch, once it is known."""
        takes, gives, _ = self.schedule.messages
        for op in self.schedule.tick(t, last):
            stage = self.stages.get(op.k)
            messages = stage.run(op.kind, op.batch, {box.what: self.take(box, t) for box in takes(op)}) if stage else {}
            for box in gives(op):
                self.post(box, messages[box.what] if stage else None, op)
        self.t = t

    def post(self, box, message, giver) -> None:
        """Sends a message, or reports a loss."""
        if box.what == "loss":
            self.on_loss(box.batch, message)
        elif (message := self.send(box, message, giver)) is not None:
            self.mail[box] = message

    def take(self, box, t: int):
        """Takes a message out of its box. Raises AssertionError if the box is empty."""
        try:
            return self.mail.pop(box)
        except KeyError:
            raise AssertionError(
                f"at t={t} stage k={box.k} needs {box.what} of batch {box.batch}, which has not been sent "
                f"(schedule {self.schedule.name}, K={self.schedule.K}; in the mail: {sorted(self.mail)})"
            ) from None
