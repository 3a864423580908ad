"""Makes the data of the explorer's page, as one object for its script: every schedule that can be chosen, tick by tick.

An operation is a word such as `B1.9:8!`: the backward pass of stage 1 on batch 9, after 8 updates of the stage; `!`
means that the operation ends with an update. Ticks are separated by `|`. The page computes when the operations run
(simulate.js). Many schedules have the same operations, so each distinct text is stored once and referred to by number.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import count
from typing import Any

from fdg_jax.errors import BadInput, ScheduleError
from fdg_jax.explorer import choices
from fdg_jax.explorer.choices import Variant
from fdg_jax.explorer.timeline import durations, full_tick, unit, versions
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Op, Schedule
from fdg_jax.schedule.ideal import Time, locks, tick_time
from fdg_jax.schedule.running import steady_after, validate
from fdg_jax.schedule.walk import filling, walk

MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95)


class Tables:
    """Collects the page's tables. ticks: {text with a schedule's operations: the text's number}. schedules: {variant
    and K: facts about the schedule}."""

    def __init__(self) -> None:
        self.ticks: dict[str, int] = {}
        self.schedules: dict[str, dict[str, Any]] = {}

    def add(self, variant: Variant, K: int) -> bool:
        """Adds a variant with K stages. Returns False if the variant refuses K. Raises BadInput if its schedule is
        wrong."""
        try:
            schedule = variant.schedule(K)
        except BadInput:
            return False
        ticks, method = choices.ticks_shown(schedule), variant.method
        try:
            trace = validate(schedule, max(ticks, steady_after(schedule)))
        except ScheduleError as error:  # in a method file that a user wrote
            fact = f"fdg_jax/methods/{method.name}.py: with K={K} its schedule is wrong: {error}"
            raise BadInput(f"{fact}\nCorrect the file, or remove it: the page shows all methods.") from None
        told, cost = versions(schedule, ticks, trace), method.costs(K)
        period, shift = repetition(schedule, ticks)
        words = [[word(op, *told[op]) for op in schedule.tick(t, None)] for t in range(1, ticks + 1)]
        text = "|".join(" ".join(tick) for tick in words)
        self.schedules[f"{variant.key} {K}"] = {
            "K": K,
            "ticks": self.ticks.setdefault(text, len(self.ticks)),
            "period": period,
            "shift": shift,
            "sends": sends(schedule, ticks),
            "unit": unit(schedule, cost),
            # [value of BACKWARD] -> kind -> [an ordinary stage, stage K]
            "lengths": [durations(schedule, cost, backward) for backward in choices.BACKWARD],
            "spread": method.places is not None,
            "staleness": schedule.staleness,
            "mean": schedule.mean_staleness,
            "stashes": trace.stashes,
            "accumulate": schedule.accumulate,
            "parts": schedule.micro_batches,
            **within_a_tick(schedule, method),
            "full": full_tick(schedule),
        }
        return True


def word(op: Op, version: int, used: int, updates: bool) -> str:
    """An operation as a word, in the form that the page reads."""
    return f"{op.kind}{op.k}.{op.batch}:{version}{'!' * updates}"


def repetition(schedule: Schedule, ticks: int) -> tuple[int, int]:
    """(p, n): after tick `ticks`, each tick equals the tick p ticks earlier, with batch numbers increased by n."""

    def tick(t: int, more: int = 0) -> list[Op]:
        return [op._replace(batch=op.batch + more) for op in schedule.tick(t, None)]

    for period in count(1):
        shift = tick(ticks)[0].batch - tick(ticks - period)[0].batch
        if all(tick(t + period) == tick(t, shift) for t in range(ticks - period + 1, ticks + 1)):
            return period, shift
    raise AssertionError


def sends(schedule: Schedule, ticks: int) -> dict[str, list[tuple[str, int, int]]]:
    """{"F1": [(kind, k, n), ...], ...}: the operations that read the messages of F at stage 1. (kind, k, n) means that
    the message about batch b is read by stage k's operation of this kind on batch b + n."""
    readers: dict[Op, list[tuple[str, int, int]]] = {}
    for _, steps in walk(schedule, filling(schedule, ticks)):
        for step in steps:
            for op in step.inputs:
                readers.setdefault(op, []).append((step.op.kind, step.op.k, step.op.batch - op.batch))
    found: dict[str, list[tuple[str, int, int]]] = {}
    for op, to in readers.items():
        name = f"{op.kind}{op.k}"
        found[name] = max(found.get(name, []), to, key=len)  # at the end, some messages have not been read yet
    return found


def within_a_tick(schedule: Schedule, method: Method) -> dict[str, Any]:
    """waits: whether a stage waits for another within a steady tick. barrier: for each value of BACKWARD, the time per
    batch with a barrier between ticks, even stages and free communication, in forward passes of a stage. {} if there is
    no steady tick."""
    try:
        waits, K, cost = locks(schedule).waits, schedule.K, method.costs(schedule.K)
    except ScheduleError:
        return {}
    lengths = [Time(Fraction(K), Fraction(K * backward), choices.AUXILIARY) for backward in choices.BACKWARD]
    return {"waits": waits, "barrier": [float(tick_time(schedule, cost, each).at(each)) for each in lengths]}


def about(method: Method, made: Sequence[Variant], stages: Sequence[int]) -> dict[str, Any]:
    """Facts about a method for the page, and the options that can be chosen."""
    options = choices.choosable(method)
    auxiliary = any(three[2] for three in method.costs(2).values())
    # Feedback weights, local losses and synthetic gradients give other gradients than BP, even if they are not late;
    # the last two only below stage K.
    down, other = (getattr(method.stage, name, usual) for name, usual in
                   (("cotangent_down", True), ("backward_at_other_weights", "")))  # fmt: skip
    return {
        "name": method.name,
        "summary": method.summary,
        "words": dict(method.words),
        "beta": "beta" in method.takes,
        "auxiliary": auxiliary,
        "bp": "never" if other else "always" if down and not auxiliary else "with one stage",
        "stages": list(stages),
        "options": [
            {"name": name, "values": [str(v) for v in values], "default": str(method.declared[name].default)}
            for name, values in options.items()
        ],
    }


def tables(start: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All data of the page.

    Arguments:
        start: the initial choices: "method", "K" and options of the method.

    Raises:
        BadInput: the schedule of a method, or its file, is wrong.
    """
    made, listed = Tables(), []
    for method, variants in choices.everything():
        stages = [K for K in choices.STAGES if all(made.add(variant, K) for variant in variants)]
        if stages:
            listed.append(about(method, variants, stages))
    longest = max(max(each["staleness"]) for each in made.schedules.values())
    return {
        "start": dict(start or {}),
        "methods": listed,
        "backward": choices.BACKWARD,
        "link": [float(n) for n in choices.LINK],
        "factor": [float(n) for n in choices.FACTOR],
        "auxiliary": float(choices.AUXILIARY),
        "ticks": [*made.ticks],
        "schedules": made.schedules,
        "momenta": MOMENTA,
        "limits": [[round(stability_limit(n, m), 6) for n in range(longest + 1)] for m in MOMENTA],
    }


def stability_limit(staleness: int, momentum: float = 0.0) -> float:
    """How large a learning rate may be where gradients are late: the exact limit on a quadratic, times h.

    On h w^2 / 2 with momentum m and gradients that are n updates late, training is the recurrence

        v[t+1] = m v[t] + h w[t-n],   w[t+1] = w[t] - rate v[t+1].

    It is stable while all roots of z^(n+1) - (1+m) z^n + m z^(n-1) + rate h lie inside the unit circle (for n = 0 after
    multiplication by z). At the limit a first pair of roots is on the circle, z = exp(+-ia). The rate must be real and
positive, which gives one equation for the angle a. For m = 0 the angle is a = pi / (2n+1), and the limit is
2 sin(pi / (2 (2n+1))) / h.

    Arguments:
        staleness: n, the updates between a gradient's forward pass and its use; 0 or more.
        momentum: m, in [0, 1).

    Example:
        >>> round(stability_limit(0), 6), round(stability_limit(1), 6)
        (2.0, 1.0)
    """

    def phase(angle: float) -> float:
        turned = math.atan2(momentum * math.sin(angle), 1 - momentum * math.cos(angle))
        return (staleness + 0.5) * angle + turned - math.pi / 2

    low, high = 0.0, math.pi  # the phase grows with the angle, from -pi/2 to n pi
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if phase(middle) < 0 else (low, middle)
    return 2 * math.sin(high / 2) * math.hypot(1 - momentum * math.cos(high), momentum * math.sin(high))
