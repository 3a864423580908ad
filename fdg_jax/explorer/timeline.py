"""Prepares a schedule for a drawing: every operation with its times, its weight version, and whether it updates.

The times come from the simulator, and the versions of the weights from a run on integers. The page computes the same
numbers (simulate.js).
"""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import Any, NamedTuple

from fdg_jax.explorer.choices import AUXILIARY, Times, ticks_shown
from fdg_jax.methods.interface import Costs, Method
from fdg_jax.schedule import Op, Schedule
from fdg_jax.schedule.hardware import Link, Machine
from fdg_jax.schedule.running import Trace, trace_run
from fdg_jax.schedule.simulator import run
from fdg_jax.schedule.tasks import Task, tasks_of
from fdg_jax.schedule.walk import walk

PARTS = 4  # all times that can be chosen are multiples of 1/4 of a forward pass


class Shown(NamedTuple):
    """An operation in a drawing.

    kind, k, batch: which operation this is.
    begin, end: when it runs, in forward passes.
    version: the number of updates that the stage has made before this operation.
    used: for a backward pass, the version that the forward pass of the same batch used; otherwise equal to `version`.
    updates: whether the stage updates its weights when this operation ends.
    """

    kind: str
    k: int
    batch: int
    begin: Fraction
    end: Fraction
    version: int
    used: int
    updates: bool


def unit(schedule: Schedule, cost: Costs) -> int:
    """The time units in a forward pass of a whole batch: enough that every operation takes a whole number of them."""
    below = [Fraction(n).limit_denominator(10**6).denominator for three in cost.values() for n in three]
    return PARTS * schedule.micro_batches * lcm(*below)


def durations(schedule: Schedule, cost: Costs, backward: int) -> dict[str, tuple[int, int]]:
    """{kind of operation: (its time at an ordinary stage, its time at stage K)}, in units.

    Stage K computes the true loss, so it has no auxiliary network.
    """
    one = Fraction(unit(schedule, cost), schedule.micro_batches)
    found = {}
    for kind, three in cost.items():
        f, b, auxiliary = (Fraction(n).limit_denominator(10**6) for n in three)
        last = one * (f + backward * b)
        found[kind] = (whole(last + one * AUXILIARY * auxiliary), whole(last))
    return found


def whole(number: Fraction) -> int:
    """A number as an integer. Raises ValueError if it is not whole."""
    if number.denominator != 1:
        raise ValueError(f"{number} is no whole number of units: timeline.PARTS cannot express a time of choices.py.")
    return int(number)


def machine_at(schedule: Schedule, method: Method, at: Times) -> Machine:
    """The simulator's machine for one choice of times, in whole units.

    If all devices work on every stage together (data parallel), messages between stages take no time.
    """
    cost, spread = method.costs(schedule.K), method.places is not None
    taken, message = durations(schedule, cost, at.backward), at.link * unit(schedule, cost) / schedule.micro_batches

    def seconds(kind: str, k: int) -> int:
        if kind in ("U", "enter"):
            return 0
        return whole(taken[kind][k == schedule.K] * (at.factor if k == at.slow else Fraction(1)))

    return Machine(
        seconds=seconds,
        size=lambda box, op: 0 if spread else whole(message),
        link=Link() if spread else Link(seconds_per_byte=1),
        spread=spread,
    )


def tasks_at(schedule: Schedule, method: Method, at: Times, ticks: int) -> list[Task]:
    """The simulator's tasks of the first ticks, with their times in units."""
    made = machine_at(schedule, method, at)
    tasks = tasks_of(schedule, made, ticks)
    run(tasks, made)
    return tasks


def versions(schedule: Schedule, ticks: int, trace: Trace) -> dict[Op, tuple[int, int, bool]]:
    """{operation of the first ticks: (version before it, version that its forward pass used, whether it updates)}, in
    the order of dispatch.

    trace: the trace of a run with at least `ticks` ticks.
    """
    version = trace.version
    found = {}
    for t, steps in walk(schedule, schedule.run(ticks)):
        for step in steps if t <= ticks else ():
            op = step.op
            used = version[op._replace(kind="F")] if op.kind == "B" else version[op]
            found[op] = (version[op], used, step.updates)
    return found


def timeline(schedule: Schedule, method: Method, at: Times = Times(), ticks: int | None = None) -> list[Shown]:  # noqa: B008
    """The operations of the first ticks, as a drawing shows them.

    Arguments:
        schedule: the schedule.
        method: the method, for its costs.
        at: the times of operations and messages.
        ticks: how many ticks; None for as many as the page shows.

    Raises:
        ScheduleError: the schedule is wrong.
    """
    ticks = ticks_shown(schedule) if ticks is None else ticks
    per = unit(schedule, method.costs(schedule.K))
    told = versions(schedule, ticks, trace_run(schedule, ticks))
    return [
        Shown(*op, Fraction(task.begin) / per, Fraction(task.end) / per, *told[op])
        for task in tasks_at(schedule, method, at, ticks)
        if (op := Op(task.what, task.k, task.batch)) in told
    ]


def full_tick(schedule: Schedule) -> int:
    """The first tick with as many operations as a tick in the steady state."""
    steady = len(schedule.tick(4 * schedule.K + 2, None))
    return next(t for t in range(1, 4 * schedule.K + 3) if len(schedule.tick(t, None)) == steady)


def stalest(shown: Sequence[Shown]) -> Shown | None:
    """The first backward pass with the most updates since its forward pass; None if no gradient is late. If possible,
    batches that went forward with the initial weights are skipped."""
    late = [op for op in shown if op.kind == "B" and op.version > op.used]
    most = [op for op in late if op.version - op.used == max(op.version - op.used for op in late)]
    return next((op for op in most if op.used), most[0] if most else None)


MICROSECONDS = 1000  # of a forward pass in the trace


def trace(shown: Sequence[Shown], title: str, K: int) -> dict[str, Any]:
    """Writes a schedule as a trace for ui.perfetto.dev: a track for each stage, and an arrow from a batch's F to its B.

    Arguments:
        shown: the operations.
        title: the name of the process.
        K: number of stages.

    Returns: an object in the Trace Event Format, for json.dump. A counter for each stage has the number of its updates.
    """
    made: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": title}}]
    for k in range(1, K + 1):
        made.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": k, "args": {"name": f"stage {k}"}})
        made.append({"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": k, "args": {"sort_index": k}})
    forward = {(op.k, op.batch): op for op in shown if op.kind == "F"}
    for op in shown:
        begin, end = float(op.begin * MICROSECONDS), float(op.end * MICROSECONDS)
        common = {"pid": 1, "tid": op.k}
        about = {"batch": op.batch, "weights": op.version}
        if op.kind == "B":
            about |= {"used weights": op.used, "updates in between": op.version - op.used}
        name = f"{op.kind}{op.batch}"
        made.append({"ph": "X", "name": name, "cat": op.kind, "ts": begin, "dur": end - begin, **common, "args": about})
        if op.kind == "B":
            of = forward[op.k, op.batch]
            arrow = {"name": "the same batch", "cat": "batch", "id": len(made), **common}
            made.append({"ph": "s", "ts": float((of.begin + of.end) / 2 * MICROSECONDS), **arrow})
            made.append({"ph": "f", "bp": "e", "ts": begin, **arrow})
        if op.updates:
            counter = {"ph": "C", "name": f"updates of stage {op.k}", "pid": 1, "tid": op.k}
            made.append({**counter, "ts": end, "args": {"updates": op.version + 1}})
    about = "Times are in forward passes of a stage, 1 ms each."
    return {"traceEvents": made, "displayTimeUnit": "ms", "otherData": {"about": about}}
