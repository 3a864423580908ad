"""The host loop runs any schedule; with FDG's it is Algorithm I on one page. It dispatches and never waits for a
message. Only reading losses may wait: if more than `read_behind` are unread, for the oldest (fdg_jax.engine.losses).

The schedule says which stage does which operation at which tick, and where its messages go. The stages do the work. A
message waits in the mail under its address (what, stage, batch). If an operation comes too early, `take` raises.
"""

from collections.abc import Callable
from typing import Any


class HostLoop:
    """Runs the *local* stages of a schedule; several loops, in one process or in several, can share one pipeline.

    Each loop walks the whole schedule. For an operation of another loop's stage, `send` gets None as the message.

    stages: {k: stage}, with run(kind, batch, {what: message}) -> {what: message}.
    send(address, message, sender): starts to copy a message to stage address.k, without waiting. Returns the copy, or
        None if that stage is another loop's. sender: the operation that made the message; None for a part of a batch.
    on_loss(batch, loss): is called with every loss, an array that may not have been computed yet.
    """

    def __init__(self, schedule, stages: dict[int, Any], send: Callable, on_loss: Callable[[int, Any], None]):
        self.schedule, self.stages, self.send, self.on_loss = schedule, stages, send, on_loss
        self.t = 0  # ticks done since the pipeline was last empty; until `drain` a new batch enters at every tick
        self.mail: dict[Any, Any] = {}

    def feed(self, parts) -> None:
        """Does one tick, in which a batch enters: {"x": ..., "labels": ...} of each micro-batch (mostly one)."""
        for number, part in enumerate(parts, self.t * self.schedule.micro_batches + 1):
            for address in self.schedule.messages.enters(number):
                if address.k in self.stages:
                    self.post(address, part[address.what], None)
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
            messages = stage.run(op.kind, op.batch, {at.what: self.take(at, t) for at in takes(op)}) if stage else {}
            for address in gives(op):
                self.post(address, messages[address.what] if stage else None, op)
        self.t = t

    def post(self, address, message, sender) -> None:
        """Sends a message, or reports a loss."""
        if address.what == "loss":
            self.on_loss(address.batch, message)
        elif (copy := self.send(address, message, sender)) is not None or address.k in self.stages:
            self.mail[address] = copy

    def take(self, address, t: int):
        """Takes a message out of the mail. Raises AssertionError if there is none."""
        try:
            return self.mail.pop(address)
        except KeyError:
            raise AssertionError(
                f"at t={t} stage k={address.k} needs {address.what} of batch {address.batch}, which has not been sent "
                f"(schedule {self.schedule.name}, K={self.schedule.K}; in the mail: {sorted(self.mail)})"
            ) from None
