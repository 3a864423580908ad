"""Derives a method's locks and its ideal time per batch from its schedule, as if communication were free.

The paper prints these as Tables 1 and 2. The network is split evenly into K stages: a stage's forward pass takes Tf/K,
its backward pass Tb/K. The auxiliary network of a stage, if it has one, takes Taux. An operation begins when its stage
has finished the previous operation and the messages that it reads have arrived:

    BP, K = 2:  k=1  F5      B5      Tf + Tb      DDG:  k=1  F5B4        Tf + Tb/2 with a barrier after each tick,
                k=2      F5B5                           k=2      F5B5    (Tf + Tb)/2 without

With a barrier between ticks, as the paper assumes, the time per batch is the critical path through one steady tick
(`tick_time`). Without a barrier, as in the host loop, a stage goes on with its next tick at once (`free_time`). Which
path is longest depends on Tf, Tb and Taux. Paths are compared at the values in LENGTHS, unless others are given.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import floor, lcm
from typing import NamedTuple

from fdg_jax.errors import ScheduleError
from fdg_jax.schedule import Op, Schedule, Tick
from fdg_jax.schedule.walk import walk

# {kind of operation: its time as multiples of (Tf, Tb, Taux) of a stage}, see fdg_jax.methods.Method.
Cost = Mapping[str, Sequence[float | Fraction]]


class Time(NamedTuple):
    """A time as exact coefficients of Tf, Tb and Taux. Also used for the values of Tf, Tb and Taux themselves."""

    Tf: Fraction
    Tb: Fraction
    Taux: Fraction

    def plus(self, other: "Time") -> "Time":
        return Time(*(a + b for a, b in zip(self, other, strict=True)))

    def growth(self, earlier: "Time", ticks: int) -> "Time":
        """How much this time has grown per tick since an earlier one."""
        return Time(*((a - b) / ticks for a, b in zip(self, earlier, strict=True)))

    def at(self, lengths: "Time") -> Fraction:
        """The value of this time for given values of Tf, Tb and Taux."""
        return sum((a * b for a, b in zip(self, lengths, strict=True)), Fraction(0))


ZERO = Time(*[Fraction(0)] * 3)
# A backward pass takes as long as two forward passes; auxiliary networks are small.
LENGTHS = Time(Fraction(1), Fraction(2), Fraction(1, 10))
COMPARED = LENGTHS._replace(Taux=Fraction(0))  # for speed-ups: auxiliary networks count as free


class Locks(NamedTuple):
    """The paper's kinds of locking. They say whether operations wait for others within a steady tick, directly or
    through other operations.

    forward: an F waits for an F of another stage.
    backward: a B waits for a B of a later stage.
    update: a B waits for an F of a later stage.
    waits: some operation waits for another stage (the paper's single Yes or No).
    """

    forward: bool
    backward: bool
    update: bool
    waits: bool


def steady_tick(schedule: Schedule) -> Tick:
    """A tick of the full pipeline. Raises ScheduleError unless the next tick has the same operations, each one batch
    later."""
    t = 4 * schedule.K + 2
    tick, following = schedule.tick(t, None), schedule.tick(t + 1, None)
    if following != tuple(op._replace(batch=op.batch + schedule.micro_batches) for op in tick):
        raise ScheduleError(f"{schedule.name}: ticks {t} and {t + 1} differ, so the time per batch is not constant.")
    return tick


def locks(schedule: Schedule) -> Locks:
    """The locks of a schedule. Raises ScheduleError if it has no steady tick."""
    waits: dict[Op, set[Op]] = {}  # for each operation, all operations that must be done before it, also indirectly
    for step in (step for _, steps in walk(schedule, [(1, steady_tick(schedule))]) for step in steps):
        direct = {*step.inputs, *([step.previous] if step.previous else [])}
        waits[step.op] = direct.union(*(waits[other] for other in direct))
    pairs = [(op, other) for op, others in waits.items() for other in others if other.k != op.k]
    later = {(op.kind, other.kind) for op, other in pairs if other.k > op.k}
    forward = any(op.kind == other.kind == "F" for op, other in pairs)
    return Locks(forward, ("B", "B") in later, ("B", "F") in later, bool(pairs))


def duration(schedule: Schedule, cost: Cost) -> Callable[[Op], Time]:
    """Returns a function: operation -> how long it takes. Taux is 0 for stage K, which has no auxiliary network."""
    K, M = schedule.K, schedule.micro_batches
    exact = {kind: [Fraction(n).limit_denominator(10**6) / M for n in three] for kind, three in cost.items()}
    below = {kind: Time(f / K, b / K, aux) for kind, (f, b, aux) in exact.items()}
    last = {kind: time._replace(Taux=Fraction(0)) for kind, time in below.items()}
    return lambda op: (below if op.k < K else last)[op.kind]


def end_times(schedule: Schedule, ticks: Iterable[Tick], cost: Cost, lengths: Time) -> dict[Op, Time]:
    """When each operation ends: the length of the critical path to it, from the beginning of the first operation.

    Arguments:
        schedule: the schedule, for its stages and messages.
        ticks: the operations, tick by tick.
        cost: the time of each kind of operation, in (Tf, Tb, Taux).
        lengths: the values of Tf, Tb and Taux at which paths are compared.
    """
    taken = duration(schedule, cost)
    ended: dict[Op, Time] = {}
    for step in (step for _, steps in walk(schedule, enumerate(ticks, 1)) for step in steps):
        free = ended[step.previous] if step.previous else ZERO
        starts = [free, *(ended[sender] for sender in step.inputs)]
        ended[step.op] = max(starts, key=lambda time: time.at(lengths)).plus(taken(step.op))
    return ended


def tick_time(schedule: Schedule, cost: Cost, lengths: Time = LENGTHS) -> Time:
    """Time per batch with a barrier between ticks: the critical path through a steady tick (Table 2).

    Arguments:
        schedule: the method's schedule for one K.
        cost, lengths: as for `end_times`.

    Raises:
        ScheduleError: the schedule has no steady tick.
    """
    ended = end_times(schedule, [steady_tick(schedule)], cost, lengths)
    return max(ended.values(), key=lambda time: time.at(lengths))


def free_time(schedule: Schedule, cost: Cost, lengths: Time = LENGTHS) -> Time:
    """Time per batch without a barrier: a stage does its operations in dispatch order and waits only for messages.

    It is the growth of the stages' finishing times per tick in the steady state.

    Arguments:
        schedule: the method's schedule for one K.
        cost, lengths: as for `end_times`.

    Raises:
        ScheduleError: the pipeline has no steady state after 8K ticks.
    """
    K, window = schedule.K, 2 * schedule.K
    at = (8 * K, 8 * K + window, 8 * K + 2 * window)
    ticks = [schedule.tick(t, None) for t in range(1, at[-1] + 1)]
    ended = end_times(schedule, ticks, cost, lengths)
    a, b, c = ({op.k: ended[op] for op in ticks[t - 1]} for t in at)  # when each stage has finished a tick
    earlier, later = ([y[k].growth(x[k], window) for k in sorted(c)] for x, y in ((a, b), (b, c)))
    if earlier != later:
        raise ScheduleError(f"{schedule.name}: after {at[0]} ticks its {K} stages do not run steadily yet.")
    return max(later, key=lambda time: time.at(lengths))


def term(factor: Fraction | int, name: str) -> str:
    """A term of a formula, such as 2Tf or Tb/3."""
    top, below = Fraction(factor).as_integer_ratio()
    return f"{'' if top == 1 else top}{name}" + (f"/{below}" if below > 1 else "")


def formula(time: Time) -> str:
    """A time as the paper prints it for one K: whole multiples first, then fractions.

    Examples: Tf + (Tf+Tb)/3, (2Tf+Tb)/3 + Taux.
    """
    parts = [term(floor(n), name) for n, name in ((time.Tf, "Tf"), (time.Tb, "Tb")) if n >= 1]
    f, b = time.Tf % 1, time.Tb % 1
    if f and f == b:
        parts.append(term(f, "(Tf+Tb)"))
    elif f and b:
        below = lcm(f.denominator, b.denominator)
        parts.append(f"({term(f * below, 'Tf')}+{term(b * below, 'Tb')})/{below}")
    else:
        parts += [term(n, name) for n, name in ((f, "Tf"), (b, "Tb")) if n]
    return " + ".join(parts + ([term(time.Taux, "Taux")] if time.Taux else [])) or "0"
