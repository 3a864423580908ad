"""Finds what is in flight in a saved state of the host loop, and checks that it is what the schedule needs."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fdg_jax.checkpoint import state as states
from fdg_jax.checkpoint.state import number
from fdg_jax.errors import BadInput
from fdg_jax.schedule import Address, Schedule
from fdg_jax.schedule.walk import walk
from fdg_jax.stages.stage import Stage


class InFlight(NamedTuple):
    """mail: messages that have been sent and not yet been read.
    kept: {(stage k, kind of operation): batches that went forward there and still need that operation}.
    passes: for k = 1..K, the backward passes that stage k has done.
    """

    mail: set[Address]
    kept: dict[tuple[int, str], list[int]]
    passes: list[int]


def in_flight(schedule: Schedule, t: int) -> InFlight:
    """What is in flight after t ticks of a pipeline that began empty, with a new batch in each tick.

    A drain finishes exactly what is in flight. So it is computed as what the drain's operations need, but do not make.
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


def of_stage(name: str) -> int | None:
    """The stage that an entry of a saved state belongs to; None if it is of the whole pipeline."""
    found = re.match(r"stage(\d+)/|mail/\w+/(\d+)/", name)
    return int(found[1] or found[2]) if found else None


def batch_sizes(state: Mapping[str, Any]) -> dict[int, int]:
    """The number of examples of each batch in flight in a saved state: the length of its messages and stashes."""
    paths = ((re.match(r"stage\d+/memo/(\d+)/(?:x|\[0\])|mail/\w+/\d+/(\d+)/", name), name) for name in state)
    return {int(found[1] or found[2]): len(state[name]) for found, name in paths if found}


def check_in_flight(stage: Stage, flat: Mapping[str, Any], under_way: InFlight) -> None:
    """Raises BadInput if a stage's saved state does not hold exactly what the schedule needs.

    Arguments:
        stage: the stage.
        flat: its saved state.
        under_way: what is in flight in the pipeline, by the schedule.
    """
    for name, kind in stage.keeps.items():
        found, needed = states.numbers(flat, f"{name}/"), sorted(under_way.kept.get((stage.k, kind), []))
        if found != needed:
            fact = f"the checkpoint holds {name}s of the batches {found} for stage k={stage.k}, but {needed} are needed"
            raise BadInput(f"{fact}: it is not whole.")
    passes, line = under_way.passes[stage.k - 1], states.numbers(flat, "line/")
    waiting = min(passes, stage.delay)
    summed = (passes - waiting) % stage.accumulate
    if (line, number(flat, "summed")) != (list(range(waiting)), summed):
        raise BadInput(
            f"the checkpoint holds {len(line)} gradients in the delay line of stage k={stage.k} and "
            f"{number(flat, 'summed')} in its sum, but {waiting} and {summed} are needed: it is not whole."
        )
