"""Runs a schedule on integers, to find the weight version of every operation, the staleness of every gradient, and
errors in the schedule."""

from typing import NamedTuple

from fdg_jax.errors import ScheduleError
from fdg_jax.schedule import Address, Op, Schedule
from fdg_jax.schedule.drawing import render
from fdg_jax.schedule.walk import Step, walk

MOST_BATCHES = 10_000  # a run of so many takes some seconds


class Trace(NamedTuple):
    """Measurements from a run of a schedule (not its declarations).

    version[op]: the weight version (number of updates so far) that stage op.k uses in the operation.
    tick[op]: the tick of the operation.
    staleness[k-1]: for each batch, the updates of stage k between the batch's forward pass and the update by the batch.
    stashes[k-1]: the most batches that stage k keeps at the end of a tick, between their forward pass and their last
        operation.
    first_update[k-1]: the tick of stage k's first update.
    """

    version: dict[Op, int]
    tick: dict[Op, int]
    staleness: tuple[list[int], ...]
    stashes: tuple[int, ...]
    first_update: tuple[int, ...]


def trace_run(schedule: Schedule, batches: int) -> Trace:
    """Runs a schedule on integers, fill and drain included.

    Arguments:
        schedule: the schedule.
        batches: how many batches enter.

    Returns: the measurements.

    Raises:
        ScheduleError: an operation needs a message that does not exist, is done twice, or sends a message that no
            operation reads.
    """
    K, done, version = schedule.K, dict[Op, int](), dict[Op, int]()
    updates, held, stashes, first_update = [0] * K, [0] * K, [0] * K, [0] * K
    waiting: list[list[Op]] = [[] for _ in range(K)]  # forward passes whose gradients have arrived but are not yet used
    staleness: tuple[list[int], ...] = tuple([] for _ in range(K))
    last = {(op.k, op.batch): op for _, tick in schedule.run(batches) for op in tick}
    mail = set[Address]()
    for t, steps in walk(schedule, schedule.run(batches)):
        entering = range((t - 1) * schedule.micro_batches + 1, t * schedule.micro_batches + 1) if t <= batches else ()
        mail |= {address for batch in entering for address in schedule.messages.enters(batch)}
        for step in steps:
            op, forward = step.op, Op("F", step.op.k, step.op.batch)
            _check_step(schedule, t, step, mail, done)
            mail -= set(step.senders)
            mail |= {address for address in step.sends if address.what != "loss"}
            i = op.k - 1
            done[op], version[op] = t, updates[i]
            held[i] += (op == forward) - (op == last[op.k, op.batch])
            if op.kind == "B":
                waiting[i].append(forward)
                if len(waiting[i]) > schedule.wait(op.k):
                    staleness[i].append(updates[i] - version[waiting[i].pop(0)])
            if step.updates:
                updates[i] += 1
                first_update[i] = first_update[i] or t
        stashes = [max(pair) for pair in zip(stashes, held, strict=True)]
    for i, left in enumerate(waiting):  # gradients that stages hold back are used at the end of the drain
        for forward in left:
            staleness[i].append(len(staleness[i]) // schedule.accumulate - version[forward])
    if mail:
        unread = [f"{address.what} of batch {address.batch} for stage k={address.k}" for address in sorted(mail)[:5]]
        raise ScheduleError(f"{schedule.name}: these messages are sent but never read: {', '.join(unread)}.")
    return Trace(version, done, staleness, tuple(stashes), tuple(first_update))


def _check_step(schedule: Schedule, t: int, step: Step, mail: set[Address], done: dict[Op, int]) -> None:
    """Raises ScheduleError if the operation's messages or its forward pass are missing, or if it is done twice."""
    op, forward = step.op, Op("F", step.op.k, step.op.batch)
    missing = [f"{address.what} of batch {address.batch}" for address in step.senders if address not in mail]
    if op.kind != "F" and forward not in done:
        missing.append(f"its own {forward}")
    if missing:
        raise ScheduleError(
            f"{schedule.name}: at t={t} stage k={op.k} does {op}, which needs {' and '.join(missing)}. "
            f"This has not been computed yet.\n{render(schedule, t)}"
        )
    if op in done:
        raise ScheduleError(f"{schedule.name}: at t={t} stage k={op.k} does {op} a second time.")


def validate(schedule: Schedule, batches: int) -> Trace:
    """Checks a schedule over a whole run.

    Every stage must do F and B of every batch exactly once and in order. No message may be read before it is sent. The
    measured staleness of every batch must equal the declared one (`Schedule.updates_late`).

    Arguments:
        schedule: the schedule.
        batches: how many batches enter.

    Returns: the measurements.

    Raises:
        ScheduleError: names the stage, the operation and the tick that are wrong.
    """
    K, parts = schedule.K, batches * schedule.micro_batches
    if len(schedule.delays) != K:
        raise ScheduleError(f"{schedule.name}: `delays` has {len(schedule.delays)} numbers for {K} stages.")
    trace = trace_run(schedule, batches)
    wanted = {Op(kind, k, b) for kind in "FB" for k in range(1, K + 1) for b in range(1, parts + 1)}
    if missing := sorted(wanted - trace.version.keys()):  # no other operations: their messages would be missing
        ops = [f"{op} of stage k={op.k}" for op in missing[:5]]
        raise ScheduleError(f"{schedule.name}: never done: {', '.join(ops)}.")
    for kind in {op.kind for op in trace.tick}:
        for k in range(1, K + 1):
            order = [op.batch for op in trace.tick if (op.kind, op.k) == (kind, k)]
            if order != sorted(order):
                raise ScheduleError(f"{schedule.name}: stage k={k} does {kind} of batches out of order: {order}.")
    for k in range(1, K + 1):
        expected = [schedule.updates_late(k, batch) for batch in range(1, parts + 1)]
        wrong = [b for b, pair in enumerate(zip(trace.staleness[k - 1], expected, strict=True)) if len({*pair}) == 2]
        if wrong:
            b = wrong[-1]  # the last one, which shows an error of the full pipeline if there is one
            raise ScheduleError(
                f"{schedule.name}: the gradient of batch {b + 1} at stage k={k} has staleness "
                f"{trace.staleness[k - 1][b]} by the ticks and {expected[b]} by delays={schedule.delays}."
            )
    return trace


def steady_after(schedule: Schedule) -> int:
    """A number of batches that fills the pipeline, reaches its steady state and, unless updates are thousands of
    batches apart, gives every stage some updates."""
    return max(4 * schedule.K + 2, min(max(schedule.delays) + 3 * schedule.accumulate, MOST_BATCHES))
