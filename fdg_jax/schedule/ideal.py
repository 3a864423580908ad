"""What a method could gain if communication were free: its locks and its time per batch, read off its schedule.

The paper prints these as Tables 1 and 2; here nothing is typed in. A network is evenly split into K stages, so a
stage's forward pass takes Tf/K, its backward pass Tb/K and its auxiliary network, where it has one, all of Taux. An
operation begins when its stage has done what was dispatched to it before and when its messages have come:

    BP, K = 2:  k=1  F5      B5      Tf + Tb      DDG:  k=1  F5B4        Tf + Tb/2 with a barrier behind the tick,
                k=2      F5B5                           k=2      F5B5    (Tf + Tb)/2 without

With a barrier between ticks (`tick_time`, what the paper assumes) the critical path through one steady tick is the
time per batch. Without one (`free_time`, what the host loop does) a stage goes on with its next tick at once. Which
of two paths is the longer one depends on the lengths; they are compared at LENGTHS unless others are given.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import floor, lcm
from typing import NamedTuple

from fdg_jax.errors import ScheduleError
from fdg_jax.schedule.core import Box, Op, Schedule, Tick

Cost = Mapping[str, Sequence[float | Fraction]]  # of an operation's kind, see fdg_jax.methods.Method


class Time(NamedTuple):
    """A time as exact coefficients of Tf, Tb and Taux, or the lengths of these three themselves."""

    Tf: Fraction
    Tb: Fraction
    Taux: Fraction

    def plus(self, other: "Time") -> "Time":
        return Time(*(a + b for a, b in zip(self, other, strict=True)))

    def since(self, other: "Time", ticks: int) -> "Time":
        """The difference a tick."""
        return Time(*((a - b) / ticks for a, b in zip(self, other, strict=True)))

    def at(self, lengths: "Time") -> Fraction:
        """The number it is for those lengths."""
        return sum((a * b for a, b in zip(self, lengths, strict=True)), Fraction(0))


ZERO = Time(*[Fraction(0)] * 3)
LENGTHS = Time(Fraction(1), Fraction(2), Fraction(1, 10))  # a backward pass is two forward passes; heads are small
COMPARED = LENGTHS._replace(Taux=Fraction(0))  # of speed-ups: auxiliary networks cost nothing


class Locks(NamedTuple):
    """Within a steady tick: forward, an F waits for F of another stage; backward, a B for B of a later one; update, a
    B for F of a later one; each directly or through other operations. waits: anything for any other stage (the paper's
    single Yes or No)."""

    forward: bool
    backward: bool
    update: bool
    waits: bool


def steady_tick(schedule: Schedule) -> Tick:
    """A tick of the full pipeline. ScheduleError where the next one is not the same a batch later."""
    t = 4 * schedule.K + 2
    tick, following = schedule.tick(t, None), schedule.tick(t + 1, None)
    if following != tuple(op._replace(batch=op.batch + schedule.micro_batches) for op in tick):
        raise ScheduleError(f"{schedule.name}: ticks {t} and {t + 1} differ, so there is no one time per batch.")
    return tick


def locks(schedule: Schedule) -> Locks:
    """Who has to wait for another stage's operation of the same tick."""
    takes, gives, _ = schedule.messages
    giver: dict[Box, Op] = {}
    waits: dict[Op, set[Op]] = {}  # everything that has to be done before, directly or not
    newest: dict[int, Op] = {}  # of each stage: it does one thing after the other
    for op in steady_tick(schedule):
        direct = {giver[box] for box in takes(op) if box in giver}
        if op.k in newest:
            direct.add(newest[op.k])
        waits[op] = direct.union(*(waits[other] for other in direct))
        giver |= dict.fromkeys(gives(op), op)
        newest[op.k] = op
    pairs = [(op, other) for op, others in waits.items() for other in others if other.k != op.k]
    later = {(op.kind, other.kind) for op, other in pairs if other.k > op.k}
    forward = any(op.kind == other.kind == "F" for op, other in pairs)
    return Locks(forward, ("B", "B") in later, ("B", "F") in later, bool(pairs))


def duration(schedule: Schedule, cost: Cost) -> Callable[[Op], Time]:
    """How long an operation takes. Stage K ends in the true loss and has no auxiliary network: there Taux is 0."""
    K, M = schedule.K, schedule.micro_batches
    exact = {kind: [Fraction(n).limit_denominator(10**6) / M for n in three] for kind, three in cost.items()}
    below = {kind: Time(f / K, b / K, aux) for kind, (f, b, aux) in exact.items()}
    last = {kind: time._replace(Taux=Fraction(0)) for kind, time in below.items()}
    return lambda op: (below if op.k < K else last)[op.kind]


def ends(schedule: Schedule, ops: Iterable[Op], cost: Cost, lengths: Time) -> dict[Op, Time]:
    """When each operation ends: the critical path to it from the beginning of the first of them."""
    takes, gives, _ = schedule.messages
    taken = duration(schedule, cost)
    free: dict[int, Time] = {}  # when the stage has done what it was asked for so far
    sent: dict[Box, Time] = {}  # what is not in here came before
    ended: dict[Op, Time] = {}
    for op in ops:
        starts = [free.get(op.k, ZERO), *(sent.pop(box) for box in takes(op) if box in sent)]
        ended[op] = free[op.k] = max(starts, key=lambda time: time.at(lengths)).plus(taken(op))
        sent |= dict.fromkeys(gives(op), ended[op])
    return ended


def tick_time(schedule: Schedule, cost: Cost, lengths: Time = LENGTHS) -> Time:
    """Time per batch with a barrier between ticks: the critical path through a steady tick (Table 2)."""
    ended = ends(schedule, steady_tick(schedule), cost, lengths)
    return max(ended.values(), key=lambda time: time.at(lengths))


def free_time(schedule: Schedule, cost: Cost, lengths: Time = LENGTHS) -> Time:
    """Time per batch without a barrier: every stage does its operations in the order of dispatch and waits for nothing
    but the messages it takes. Once they run steadily, the stages' finishing times grow by it from tick to tick.

    ScheduleError where 8K ticks do not bring them there.
    """
    K, window = schedule.K, 2 * schedule.K
    at = (8 * K, 8 * K + window, 8 * K + 2 * window)
    ticks = [schedule.tick(t, None) for t in range(1, at[-1] + 1)]
    ended = ends(schedule, [op for tick in ticks for op in tick], cost, lengths)
    a, b, c = ({op.k: ended[op] for op in ticks[t - 1]} for t in at)  # of each stage its last operation of a tick
    earlier, later = ([y[k].since(x[k], window) for k in sorted(c)] for x, y in ((a, b), (b, c)))
    if earlier != later:
        raise ScheduleError(f"{schedule.name}: {at[0]} ticks do not bring its {K} stages to run steadily.")
    return max(later, key=lambda time: time.at(lengths))


def term(factor: Fraction | int, name: str) -> str:
    """2Tf, Tb/3."""
    top, below = Fraction(factor).as_integer_ratio()
    return f"{'' if top == 1 else top}{name}" + (f"/{below}" if below > 1 else "")


def formula(time: Time) -> str:
    """As the paper prints it, for one K: what is whole first, then the shares; Tf + (Tf+Tb)/3, (2Tf+Tb)/3 + Taux."""
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
