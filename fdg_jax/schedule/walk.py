"""Reads a schedule operation by operation: what each waits for, what it sends, and whether it updates weights.

The check on integers (`running`), the drawing, the ideal times, the batches in flight after a tick, and the simulator
all use `walk`. Only the host loop, which executes the operations, reads ticks by itself.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fdg_jax.schedule import Address, Op, Schedule, Tick


class Step(NamedTuple):
    """One operation of a walk.

    op: the operation.
    previous: the same stage's previous operation in this walk; None if `op` is the first.
    senders: for each message that the operation reads, the operation that sent it. None if the message was sent before
        the walk or entered with its batch.
    sends: the messages that the operation sends.
    updates: whether the stage updates its weights right after the operation.
    """

    op: Op
    previous: Op | None
    senders: dict[Address, Op | None]
    sends: tuple[Address, ...]
    updates: bool

    @property
    def inputs(self) -> list[Op]:
        """The operations of this walk whose messages the operation reads."""
        return [sender for sender in self.senders.values() if sender is not None]


def walk(schedule: Schedule, ticks: Iterable[tuple[int, Tick]]) -> Iterator[tuple[int, list[Step]]]:
    """Walks through ticks of a schedule in dispatch order. It checks nothing (`running.validate` does).

    Arguments:
        schedule: the schedule, for its messages and updates.
        ticks: (t, operations) of each tick: `schedule.run(batches)` for a whole run, `filling` for a run without end.

    Returns: for each tick (t, its steps). Updates are counted from the first of these ticks.

    Example:
        >>> from fdg_jax.schedule import bp
        >>> [str(step.op) for t, steps in walk(bp(2), bp(2).run(1)) for step in steps if step.updates]
        ['B1', 'B1']
    """
    takes, gives, _ = schedule.messages
    newest: dict[int, Op] = {}
    sender: dict[Address, Op] = {}
    passes: dict[int, int] = {}
    for t, tick in ticks:
        steps = []
        for op in tick:
            senders = {address: sender.pop(address, None) for address in takes(op)}
            sends = gives(op)
            sender |= dict.fromkeys(sends, op)
            passes[op.k] = passes.get(op.k, 0) + (op.kind == "B")
            used = passes[op.k] - schedule.wait(op.k)  # the number of gradients that may be used
            updates = op.kind == "B" and used > 0 and used % schedule.accumulate == 0
            steps.append(Step(op, newest.get(op.k), senders, sends, updates))
            newest[op.k] = op
        yield t, steps


def filling(schedule: Schedule, ticks: int) -> Iterator[tuple[int, Tick]]:
    """(t, operations) of the first ticks of a run in which batches keep coming."""
    return ((t, schedule.tick(t, None)) for t in range(1, ticks + 1))
