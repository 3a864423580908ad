"""Computes from a schedule what is in flight after t ticks. A saved state must contain exactly these items."""

from typing import NamedTuple

from fdg_jax.schedule.core import Address, Schedule
from fdg_jax.schedule.walk import walk


class InFlight(NamedTuple):
    """What is in flight in a pipeline.

    mail: messages that have been sent but not yet read.
    kept: {(stage k, kind of operation): batches that have passed forward through the stage and still need the
        operation}.
    passes: for k = 1..K, the number of backward passes that stage k has done.
    """

    mail: set[Address]
    kept: dict[tuple[int, str], list[int]]
    passes: list[int]


def in_flight(schedule: Schedule, t: int) -> InFlight:
    """What is in flight after t ticks of a pipeline that began empty, with a new batch in each tick.

    A drain finishes exactly what is in flight. So the result is everything that the drain's operations need but do not
    produce themselves.
    """
    mail, forward = set[Address](), set[tuple[int, int]]()
    kept: dict[tuple[int, str], list[int]] = {}
    passes = [t * schedule.micro_batches] * schedule.K
    drain = ((later, schedule.tick(later, t)) for later in range(t + 1, schedule.ticks(t) + 1))
    for step in (step for _, steps in walk(schedule, drain) for step in steps):
        op = step.op
        mail |= {address for address, sender in step.senders.items() if sender is None}
        if op.kind == "F":
            forward.add((op.k, op.batch))
        elif (op.k, op.batch) not in forward:
            kept.setdefault((op.k, op.kind), []).append(op.batch)
        passes[op.k - 1] -= op.kind == "B"
    return InFlight(mail, kept, passes)
