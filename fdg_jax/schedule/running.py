"""Runs a schedule on integers: which weights every operation meets, how stale each gradient is, and what is wrong."""

from typing import NamedTuple

from fdg_jax.errors import ScheduleError
from fdg_jax.schedule.core import Box, Op, Schedule
from fdg_jax.schedule.drawing import render


class Trace(NamedTuple):
    """What happens when a schedule runs: per stage, what is measured rather than derived.

    version[op]: the weight version (updates already made) that stage op.k uses in that operation; tick[op]: when.
    staleness[k-1]: the updates between a batch's forward pass and the update it causes, batch by batch.
    memos[k-1]: the most batches of which stage k keeps something at the end of a tick, having gone forward on them
    and not yet done all that it does; first_update[k-1]: the tick of its first update.
    """

    version: dict[Op, int]
    tick: dict[Op, int]
    staleness: tuple[list[int], ...]
    memos: tuple[int, ...]
    first_update: tuple[int, ...]


def simulate(schedule: Schedule, batches: int) -> Trace:
    """Runs the schedule on integers. Raises ScheduleError where it uses what does not exist or sends what no one
    reads."""
    K, M, done, version = schedule.K, schedule.accumulate, dict[Op, int](), dict[Op, int]()
    updates, passes, held, memos, first = [0] * K, [0] * K, [0] * K, [0] * K, [0] * K
    staleness: tuple[list[int], ...] = tuple([] for _ in range(K))
    last = {(op.k, op.batch): op for _, tick in schedule.run(batches) for op in tick}
    mail = set[Box]()
    for t, tick in schedule.run(batches):
        entering = range((t - 1) * schedule.micro_batches + 1, t * schedule.micro_batches + 1) if t <= batches else ()
        mail |= {box for batch in entering for box in schedule.messages.enters(batch)}
        for op in tick:
            forward, i = Op("F", op.k, op.batch), op.k - 1
            missing = [f"{box.what} of batch {box.batch}" for box in schedule.messages.takes(op) if box not in mail]
            if op.kind != "F" and forward not in done:
                missing.append(f"its own {forward}")
            if missing:
                raise ScheduleError(
                    f"{schedule.name}: at t={t} stage k={op.k} does {op}, which needs {' and '.join(missing)}, "
                    f"and that has not happened.\n{render(schedule, t)}"
                )
            if op in done:
                raise ScheduleError(f"{schedule.name}: at t={t} stage k={op.k} does {op} a second time.")
            mail -= set(schedule.messages.takes(op))
            mail |= {box for box in schedule.messages.gives(op) if box.what != "loss"}
            done[op], version[op] = t, updates[i]
            held[i] += (op == forward) - (op == last[op.k, op.batch])
            if op.kind == "B":
                # The update comes after M backward passes; until then `updates` does not move.
                staleness[i].append(updates[i] - version[forward])
                passes[i] += 1
                if passes[i] % M == 0:
                    updates[i] += 1
                    first[i] = first[i] or t
        memos = [max(pair) for pair in zip(memos, held, strict=True)]
    if mail:
        raise ScheduleError(f"{schedule.name}: sent and never read: {sorted(mail)[:5]}")
    return Trace(version, done, staleness, tuple(memos), tuple(first))


def validate(schedule: Schedule, batches: int) -> Trace:
    """Checks a schedule over a whole run and returns what was measured.

    Every batch is forwarded and backwarded exactly once by every stage, in order, nothing is used before it
    exists, and the staleness of every single batch is as derived: with n gradients behind and an update every M,
    b // M - max(0, b - n) // M for the b-th batch from 0, which for M = 1 is min(b, n).
    """
    trace = simulate(schedule, batches)
    K, parts = schedule.K, batches * schedule.micro_batches
    wanted = {Op(kind, k, b) for kind in "FB" for k in range(1, K + 1) for b in range(1, parts + 1)}
    found = {op for op in trace.version if op.kind in ("F", "B")}
    missing, extra = wanted - found, found - wanted
    if missing or extra:
        raise ScheduleError(f"{schedule.name}: never done {sorted(missing)[:5]}, too much {sorted(extra)[:5]}")
    for kind in {op.kind for op in trace.tick}:
        for k in range(1, K + 1):
            order = [op.batch for op in trace.tick if (op.kind, op.k) == (kind, k)]
            if order != sorted(order):
                raise ScheduleError(f"{schedule.name}: stage k={k} does {kind} of the batches in the order {order}")
    M = schedule.accumulate
    for k, behind in enumerate(schedule.behind, 1):
        expected = [b // M - max(0, b - behind) // M for b in range(parts)]
        if trace.staleness[k - 1] != expected:
            raise ScheduleError(
                f"{schedule.name}: stage k={k} has staleness {trace.staleness[k - 1]}, derived {expected}"
            )
    return trace
