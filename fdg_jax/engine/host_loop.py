"""Algorithm I on one page: the host loop. It dispatches and never waits.

All knowledge of who does what when, and of who writes to whom, is in the schedule; all knowledge of how is in the
stages. Messages lie in mailboxes keyed by (what, stage, batch): an operation that comes too early finds its box
empty, so a wrong schedule is an immediate error and never a wrong number.
"""

from collections.abc import Callable
from typing import Any


class HostLoop:
    """Runs the *local* stages of a schedule; several loops can share one pipeline.

    schedule: a fdg_jax.schedule.Schedule. stages: {k: stage} with run(kind, batch, {what: message}) -> {what: message}.
    send(box, message): starts an asynchronous copy to stage box.k and returns the message there, at once. For a stage
    of another loop it delivers into that loop's mail instead, and what it returns is not used.
    on_loss(batch, loss): is handed every loss, an array that may not have been computed yet.
    """

    def __init__(self, schedule, stages: dict[int, Any], send: Callable, on_loss: Callable[[int, Any], None]):
        self.schedule, self.stages, self.send, self.on_loss = schedule, stages, send, on_loss
        self.t = 0  # ticks done since the pipeline was last empty; a new batch enters at every tick
        self.mail: dict[Any, Any] = {}

    def step(self, parts) -> None:
        """One tick, in which a new batch enters in its micro-batches (for most methods one, the whole batch): a list
        of what comes from outside, {"x": ..., "labels": ...}."""
        for number, part in enumerate(parts, self.t * self.schedule.micro_batches + 1):
            for box in self.schedule.messages.enters(number):
                if box.k in self.stages:
                    self.post(box, part[box.what])
        self.tick(self.t + 1, None)

    def drain(self) -> None:
        """The ticks after the last batch, until it has updated every stage. The pipeline is then empty, t = 0."""
        last = self.t
        for t in range(last + 1, self.schedule.ticks(last) + 1):
            self.tick(t, last)
        self.t = 0

    def tick(self, t: int, last: int | None) -> None:
        takes, gives, _ = self.schedule.messages
        for op in self.schedule.tick(t, last):
            stage = self.stages.get(op.k)
            if stage is None:  # another loop has it
                continue
            messages = stage.run(op.kind, op.batch, {box.what: self.take(box, t) for box in takes(op)})
            for box in gives(op):
                self.post(box, messages[box.what])
        self.t = t

    def post(self, box, message) -> None:
        if box.what == "loss":
            self.on_loss(box.batch, message)
            return
        message = self.send(box, message)
        if box.k in self.stages:
            self.mail[box] = message

    def take(self, box, t: int):
        try:
            return self.mail.pop(box)
        except KeyError:
            raise AssertionError(
                f"at t={t} stage k={box.k} needs {box.what} of batch {box.batch}, which has not been sent "
                f"(schedule {self.schedule.name}, K={self.schedule.K}; in the mail: {sorted(self.mail)})"
            ) from None
