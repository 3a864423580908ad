"""What is under way in a pipeline after t ticks, told by the schedule alone. A state must hold exactly that."""

from typing import NamedTuple

from fdg_jax.schedule.core import Box, Schedule


class InFlight(NamedTuple):
    """mail: messages that have been sent and not been read. kept: by stage k and kind of operation, the batches that
    went forward there and still need that operation. passes: per stage k = 1..K, its backward passes so far."""

    mail: set[Box]
    kept: dict[tuple[int, str], list[int]]
    passes: list[int]


def in_flight(schedule: Schedule, t: int) -> InFlight:
    """After t ticks of a pipeline that was empty before, with a new batch in each of them.

    The ticks of a drain finish exactly what is under way. So it is what they ask for and do not make themselves.
    """
    mail, made, forward = set[Box](), set[Box](), set[tuple[int, int]]()
    kept: dict[tuple[int, str], list[int]] = {}
    passes = [t * schedule.micro_batches] * schedule.K
    takes, gives, _ = schedule.messages
    for later in range(t + 1, schedule.ticks(t) + 1):
        for op in schedule.tick(later, t):
            mail |= set(takes(op)) - made
            made |= set(gives(op))
            if op.kind == "F":
                forward.add((op.k, op.batch))
            elif (op.k, op.batch) not in forward:
                kept.setdefault((op.k, op.kind), []).append(op.batch)
            passes[op.k - 1] -= op.kind == "B"
    return InFlight(mail, kept, passes)
