"""Finds what is in flight in a saved state of the host loop, and checks it against the schedule."""

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


def of_stage(name: str) -> int | None:
    """The stage to which an entry of a saved state belongs; None if it belongs to the whole pipeline."""
    found = re.match(r"stage(\d+)/|mail/\w+/(\d+)/", name)
    return int(found[1] or found[2]) if found else None


def batch_sizes(state: Mapping[str, Any]) -> dict[int, int]:
    """{number of a batch in flight: its number of examples}, from the lengths of messages and stashes in a saved
    state."""
    paths = ((re.match(r"stage\d+/memo/(\d+)/(?:x|\[0\])|mail/\w+/\d+/(\d+)/", name), name) for name in state)
    return {int(found[1] or found[2]): len(state[name]) for found, name in paths if found}


def check_in_flight(stage: Stage, flat: Mapping[str, Any], under_way: InFlight) -> None:
    """Raises BadInput if a stage's saved state does not contain exactly the stashes and gradients that the schedule
    needs.

    Arguments:
        stage: the stage.
        flat: its saved state.
        under_way: what is in flight in the pipeline, according to the schedule.
    """
    for name, kind in stage.keeps.items():
        found, needed = states.numbers(flat, f"{name}/"), sorted(under_way.kept.get((stage.k, kind), []))
        if found != needed:
            fact = f"the checkpoint holds {name}s of the batches {found} for stage k={stage.k}, but {needed} are needed"
            raise BadInput(f"{fact}: it is incomplete.")
    passes, line = under_way.passes[stage.k - 1], states.numbers(flat, "line/")
    waiting = min(passes, stage.delay)
    summed = (passes - waiting) % stage.accumulate
    if (line, number(flat, "summed")) != (list(range(waiting)), summed):
        raise BadInput(
            f"the checkpoint holds {len(line)} waiting gradients of stage k={stage.k} and "
            f"{number(flat, 'summed')} in the sum for its next update, but {waiting} and {summed} are needed."
        )
