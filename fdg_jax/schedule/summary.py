"""Describes a schedule for people: its drawing, and a table with measurements of each stage from a run on integers."""

import textwrap
from collections.abc import Mapping

from fdg_jax.schedule import Op, Schedule
from fdg_jax.schedule.drawing import draw, render
from fdg_jax.schedule.running import steady_after, validate


def describe(schedule: Schedule, ticks: int | None = None, words: Mapping[str, str] | None = None) -> str:
    """Describes a schedule: its drawing, then for each stage delay, staleness, first update, stashes, weight versions.

    Arguments:
        schedule: the schedule.
        ticks: how many ticks to draw; by default until the pipeline is full, and one or two more.
        words: {kind of operation: what it does} for kinds other than F and B.

    Returns: text of several lines.

    Raises:
        ScheduleError: the schedule is wrong.
    """
    K = schedule.K
    batches = steady_after(schedule)
    trace = validate(schedule, batches)
    if ticks is None:
        steady = len(schedule.tick(batches, None))
        full = next(t for t, tick in schedule.run(batches) if len(tick) == steady)
        ticks = full + min(full, 2)
    shown = min(batches, max(1, ticks - K + 1))
    table = [["stage", "delay", "staleness", "first update", "stashes", f"weight version at F1..F{shown}"]]
    for k in range(1, K + 1):
        versions = " ".join(str(trace.version[Op("F", k, b)]) for b in range(1, shown + 1))
        delay = trace.tick[Op("B", k, batches)] - trace.tick[Op("F", k, batches)]
        row = [f"k={k}", str(delay), str(max(trace.staleness[k - 1])), f"t={trace.first_update[k - 1]}"]
        table.append([*row, str(trace.stashes[k - 1]), versions])
    M, part = schedule.accumulate, schedule.micro_batches > 1
    sentences = [
        f"F3: forward of {'micro-' if part else ''}batch 3.",
        f"B3: its backward{'' if M > 1 else ' and the update'}.",
        *[f"{kind}3: {text}." for kind, text in (words or {}).items()],
        *([f"A batch is {M} micro-batches."] if part else []),
        *([f"A stage updates after every {M} of its backward passes."] if M > 1 else []),
        "Delay: the ticks between F and B. Staleness: the updates of the stage between a batch's forward pass and the "
        "update with that batch's gradient.",
        "Weight version: number of updates so far. Stashes: batches that a stage keeps at the end of a tick.",
    ]
    return f"{render(schedule, ticks)}\n\n{draw(table)}\n\n{textwrap.fill(' '.join(sentences), 110)}"
