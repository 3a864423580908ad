"""All that the page can show, as one object for its script: compact, and complete for every combination of choices.

A stage's operations are words such as `B9:8!`: the backward pass of batch 9, before it the stage has made 8 updates,
and it makes one. When they run is told by the gaps before them, which soon repeat themselves: `0*5,4|0,1` is five
times 0, then 4, and from there 0, 1, 0, 1 and so on. Few of these texts are different, so tables refer to them by
number.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Any

from fdg_jax.errors import BadInput, ScheduleError
from fdg_jax.explorer import choices, many_times, quadratic
from fdg_jax.explorer.choices import Variant
from fdg_jax.explorer.timeline import durations, full_tick, unit, versions
from fdg_jax.methods.interface import Method
from fdg_jax.schedule import Schedule
from fdg_jax.schedule.ideal import Time, locks, tick_time
from fdg_jax.schedule.running import steady_after, validate

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
WIDTH = 3  # digits of a number of `gaps`


class Numbered:
    """Gives each different text a number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def texts(self) -> list[str]:
        return list(self.numbers)


def base36(number: int) -> str:
    """A number in WIDTH digits. ValueError where they are too few."""
    digits = ""
    for _ in range(WIDTH):
        number, digit = divmod(number, 36)
        digits = DIGITS[digit] + digits
    if number:
        raise ValueError(f"more than {36**WIDTH} different rows of gaps: tables.WIDTH is too small.")
    return digits


def folded(row: Sequence[int]) -> str:
    """A row of numbers as `beginning|what is repeated`, as short as possible."""
    n, best = len(row), (len(row), 0)
    for period in range(1, n // 3 + 1):
        beginning = n - period
        while beginning and row[beginning - 1] == row[beginning - 1 + period]:
            beginning -= 1
        if beginning + 2 * period <= n and (beginning + period, period) < (sum(best), best[1]):
            best = (beginning, period)
    beginning, period = best
    first, again = (runs(part) for part in (row[:beginning], row[beginning : beginning + period]))
    return f"{first}|{again}" if period else first


def runs(row: Sequence[int]) -> str:
    """Numbers with commas between them; three or more equal ones in a row are written once, with their count."""
    groups = [(number, len(list(same))) for number, same in groupby(row)]
    return ",".join(f"{number}*{n}" if n > 2 else ",".join([str(number)] * n) for number, n in groups)


class Tables:
    """Collects the page's tables."""

    def __init__(self) -> None:
        self.rows, self.gaps = Numbered(), Numbered()
        self.schedules: dict[str, dict[str, Any]] = {}
        self.timings: dict[str, dict[str, Any]] = {}
        self.known: dict[Any, str] = {}  # what decides the times -> the name of their table

    def add(self, variant: Variant, K: int) -> bool:
        """Adds a variant with K stages. Returns whether it takes that many. BadInput where its schedule is wrong."""
        try:
            schedule = variant.schedule(K)
        except BadInput:
            return False
        ticks = choices.ticks_shown(schedule)
        try:
            trace = validate(schedule, max(ticks, steady_after(schedule)))
        except ScheduleError as error:  # of a file of one's own
            fact = f"fdg_jax/methods/{variant.method.name}.py: with K={K} its schedule is wrong: {error}"
            raise BadInput(f"{fact}\nMend the file, or take it away: the page has all methods.") from None
        told = versions(schedule, ticks, trace)
        words: list[list[str]] = [[] for _ in range(K)]
        for op, (version, _, updates) in told.items():
            words[op.k - 1].append(f"{op}:{version}{'!' * updates}")
        first = schedule.tick(full_tick(schedule), None)[0]
        self.schedules[f"{variant.key} {K}"] = {
            "rows": [self.rows(" ".join(row)) for row in words],
            "staleness": schedule.staleness,
            "mean": schedule.mean_staleness,
            "memos": trace.memos,
            "accumulate": schedule.accumulate,
            "parts": schedule.micro_batches,
            **within_a_tick(schedule, variant.method),
            "full": [first.k, [word.partition(":")[0] for word in words[first.k - 1]].index(str(first))],
            "timing": self.timing(schedule, variant.method, ticks),
        }
        return True

    def timing(self, schedule: Schedule, method: Method, ticks: int) -> str:
        """The name of the table of a schedule's times, which is made if there is none for the same operations."""
        K, cost = schedule.K, method.costs(schedule.K)
        takes, gives, _ = schedule.messages
        ops = [op for t in range(1, ticks + 1) for op in schedule.tick(t, None)]
        decides = (K, tuple(ops), tuple(sorted(cost.items())), method.places is not None)
        decides += (tuple((takes(op), gives(op)) for op in schedule.tick(4 * K + 2, None)),)
        if decides not in self.known:
            name = self.known[decides] = str(len(self.known))
            self.timings[name] = self.timed(schedule, method, ticks)
        return self.known[decides]

    def timed(self, schedule: Schedule, method: Method, ticks: int) -> dict[str, Any]:
        """The times of a schedule for all choices."""
        K, cost, asked = schedule.K, method.costs(schedule.K), list(choices.times(schedule.K))
        made = many_times.simulate(schedule, method, asked, ticks)
        encoded: dict[bytes, str] = {}
        for row in (row for each in made.gaps for row in each):
            if row.tobytes() not in encoded:
                encoded[row.tobytes()] = base36(self.gaps(folded(row.tolist())))
        at = ["".join(encoded[each[i].tobytes()] for each in made.gaps) for i in range(len(asked))]
        steady = schedule.tick(4 * K + 2, None)
        lengths = [durations(schedule, cost, backward) for backward in choices.BACKWARD]
        return {
            "unit": unit(schedule, cost),
            "spread": method.places is not None,
            # [value of BACKWARD] -> kind -> [an ordinary stage, stage K]; and the units that stage k works for a batch
            "lengths": lengths,
            "work": [[sum(found[op.kind][op.k == K] for op in steady if op.k == k) for k in range(1, K + 1)]
                     for found in lengths],
            "gaps": "".join(at),
            "seconds": " ".join(str(rate) for rate in made.seconds),
        }  # fmt: skip


def within_a_tick(schedule: Schedule, method: Method) -> dict[str, Any]:
    """Whether a stage waits for another within a steady tick, and the forward passes that a batch takes for each value
    of BACKWARD if a barrier stands between ticks; stages are even and sending is free. Nothing where ticks differ."""
    try:
        waits, K, cost = locks(schedule).waits, schedule.K, method.costs(schedule.K)
    except ScheduleError:
        return {}
    lengths = [Time(Fraction(K), Fraction(K * backward), choices.AUXILIARY) for backward in choices.BACKWARD]
    return {"waits": waits, "barrier": [float(tick_time(schedule, cost, each).at(each)) for each in lengths]}


def about(method: Method, made: Sequence[Variant], stages: Sequence[int]) -> dict[str, Any]:
    """What the page says of a method, and what can be chosen."""
    options = choices.choosable(method)
    auxiliary = any(three[2] for three in method.costs(2).values())
    # Feedback weights, local losses and synthetic gradients give other gradients than BP's, late or not; the last two
    # only below stage K.
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
    """Everything that the page shows.

    Arguments:
        start: what is chosen when the page opens: "method", "K" and options of the method.

    Raises:
        BadInput: the schedule of a method is wrong, or its file is.
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
        "rows": made.rows.texts(),
        "gaps": made.gaps.texts(),
        "schedules": made.schedules,
        "timings": made.timings,
        "momenta": quadratic.MOMENTA,
        "limits": [
            [round(quadratic.stability_limit(n, m), 6) for n in range(longest + 1)] for m in quadratic.MOMENTA
        ],
    }
