"""The simulator's times for all choices of times at once, so that a page is made in seconds.

Without shared cores and hosts, the simulator's result is a longest path: a task begins when its queue is free and its
messages are there. Tasks are listed in dispatch order, so one pass over them is enough, and a number may as well be an
array with an entry for each choice. That this is what the simulator says is tested for every choice.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from fdg_jax.explorer.choices import Times
from fdg_jax.explorer.timeline import durations, machine, machine_at, unit
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Schedule
from fdg_jax.schedule.simulator import predict
from fdg_jax.schedule.tasks import tasks_of


class Run(NamedTuple):
    """What the stages do, for each of many choices of times.

    gaps[k-1]: int array [choice][operation]: how long stage k waits before each of its operations, in units.
    seconds: for each choice, the units per batch once the pipeline runs steadily.
    """

    gaps: list[np.ndarray]
    seconds: list[Fraction]


def simulate(schedule: Schedule, method: Method, choices: Sequence[Times], ticks: int) -> Run:
    """Simulates a run for all choices of times. ticks: of how many ticks the gaps are wanted."""
    K, cost = schedule.K, method.costs(schedule.K)
    per, parts = unit(schedule, cost), schedule.micro_batches
    link = np.array([int(at.link * per / parts) for at in choices])
    slow = [np.array([2 * at.factor if at.slow == k else 2 for at in choices], int) for k in range(K + 1)]
    table = {backward: durations(schedule, cost, backward) for backward in {at.backward for at in choices}}
    taken = {
        (kind, k): np.array([table[at.backward][kind][k == K] for at in choices]) * slow[k] // 2
        for kind in cost
        for k in range(1, K + 1)
    }
    made = machine(schedule, method, lambda kind, k: taken[kind, k], link)
    fill = 4 * K + 8  # the simulator's own windows, see `simulator.steady_run`
    fill, window = (fill, fill) if parts == 1 else (4, 4)  # with micro-batches every tick is a whole batch
    ready: dict[int, Any] = {}
    free: dict[Any, Any] = {}
    ended = [np.zeros(len(choices), int) for _ in range(K)]
    gaps: list[list[np.ndarray]] = [[] for _ in range(K)]
    finished = np.zeros((fill + window + 1, K, len(choices)), int)
    for task in tasks_of(schedule, made, max(ticks, fill + window)):
        begin = np.maximum(free.get(task.queue, 0), ready.pop(id(task), 0))
        end = free[task.queue] = begin + task.seconds
        for other in task.dependents:
            ready[id(other)] = np.maximum(ready[id(other)], end) if id(other) in ready else end
        if isinstance(task.queue, int) and task.what != "U":
            i = task.k - 1
            if task.tick <= ticks:
                gaps[i].append(begin - ended[i])
            ended[i] = end
            if task.tick <= fill + window:
                finished[task.tick, i] = end
    steady = growth(finished[fill:], len(choices))
    seconds = [
        rate if rate is not None else Fraction(predict(schedule, machine_at(schedule, method, at)).seconds)
        for rate, at in zip(steady, choices, strict=True)
    ]
    return Run([np.stack(row, axis=1) for row in gaps], seconds)


def growth(finished: np.ndarray, choices: int) -> list[Fraction | None]:
    """By how much the finishing times grow per tick, as `simulator.repeats_after` sees it; None where they do not
    repeat themselves.

    finished: int array [tick][stage][choice].
    """
    found: list[Fraction | None] = [None] * choices
    for period in range(1, len(finished) // 2 + 1):
        grown = finished[period:] - finished[:-period]
        for i in np.flatnonzero((grown == grown[0]).all(axis=(0, 1))):
            if found[i] is None:
                found[i] = Fraction(int(grown[0, :, i].max()), period)
    return found
