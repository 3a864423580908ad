"""Reads a schedule operation by operation: what each one waits for, what it sends, and when weights are updated.

Whatever interprets a schedule is built on `walk`: the check on integers (`running`), the drawing, the ideal times, what
is in flight after a tick, and the simulator. Only the host loop, which runs the operations, reads ticks by itself.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fdg_jax.schedule import Address, Op, Schedule, Tick


class Step(NamedTuple):
    """One operation of a walk.

    op: the operation.
    previous: what the same stage did before it in this walk; None if this is its first operation.
    senders: for each message that it reads, the operation of this walk that sent it; None if that happened before the
        walk, or if the message comes from outside with its batch.
    sends: the messages that it sends.
    updates: whether its stage updates its weights right after it.
    """

    op: Op
    previous: Op | None
    senders: dict[Address, Op | None]
    sends: tuple[Address, ...]
    updates: bool

    @property
    def inputs(self) -> list[Op]:
        """The operations of this walk whose messages it reads."""
        return [sender for sender in self.senders.values() if sender is not None]


def walk(schedule: Schedule, ticks: Iterable[tuple[int, Tick]]) -> Iterator[tuple[int, list[Step]]]:
    """Walks through ticks of a schedule in dispatch order. It checks nothing (`running.validate` does).

    Arguments:
        schedule: whose messages and updates count.
        ticks: (t, operations) of each tick; `schedule.run(batches)` for a whole run, `filling` for one without end.

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
            used = passes[op.k] - schedule.wait(op.k)  # gradients
            updates = op.kind == "B" and used > 0 and used % schedule.accumulate == 0
            steps.append(Step(op, newest.get(op.k), senders, sends, updates))
            newest[op.k] = op
        yield t, steps


def filling(schedule: Schedule, ticks: int) -> Iterator[tuple[int, Tick]]:
    """(t, operations) of the first ticks of a run in which batches keep coming."""
    return ((t, schedule.tick(t, None)) for t in range(1, ticks + 1))
