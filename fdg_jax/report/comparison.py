"""Runs beside one another, in words and numbers: what differs, what came out, and whether chance may explain it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fdg_jax import methods
from fdg_jax.report import verdict
from fdg_jax.report.results import Group, Result, Spread, groups, has, spread, value_of
from fdg_jax.report.schedule_part import WHY, decoupled
from fdg_jax.runs.options import FIELDS, words, written
from fdg_jax.runs.progress import clock, count
from fdg_jax.runs.run_files import unit

MOST_NAMED = 6  # groups that a sentence can name one by one


class Column(NamedTuple):
    """A column of the table: its head, a run's number in it (or None), and how a number is written."""

    head: str
    of: Callable[[Result], float | None]
    written: Callable[[float], str]


class Comparison(NamedTuple):
    """What is shown.

    said: sentences. heads, rows: the table, a row for each group. common: the options that all runs share.
    """

    groups: list[Group]
    said: list[str]
    heads: list[str]
    rows: list[list[str]]
    common: dict[str, Any]


def best_error(run: Result) -> float | None:
    """The lowest test error of a run."""
    return min((point.value for point in run.errors), default=run.final.get("test_error_percent"))


def memory(run: Result) -> float | None:
    """MB of the stage that needs most, as predicted when the run began."""
    return max(run.memory_bytes) / 1e6 if run.memory_bytes else None


def staleness(run: Result) -> float | None:
    """The updates by which the stalest stage's gradients were late."""
    return max(run.final["staleness"], default=None) if run.final.get("staleness") else None


def training_seconds(run: Result) -> float | None:
    """Until its last batch, by images/s: without compiling, evaluating and saving."""
    name = f"{unit(run.final)}_per_second"
    points = [*run.losses[-1:], *run.errors[-1:]]
    if points and (speed := run.final.get(name)):
        per_example = value_of(run, "block_size") or 1 if name.startswith("tokens") else 1
        return max(point.examples for point in points) * per_example / speed
    return max((point.seconds for point in points if point.seconds is not None), default=None)


def columns(runs: Sequence[Result]) -> list[Column]:
    """The columns that some run has a number for."""
    counted = unit(next((run.final for run in runs if "tokens_per_second" in run.final), {}))
    all_columns = [
        Column("test error % at the end", lambda run: run.final.get("test_error_percent"), "{:.2f}".format),
        Column("lowest", best_error, "{:.2f}".format),
        Column("bits per byte", lambda run: run.final.get("test_bits_per_byte"), "{:.3f}".format),
        Column("training loss", lambda run: run.final.get("train_loss"), "{:.4f}".format),
        Column(f"{counted}/s", lambda run: run.final.get(f"{counted}_per_second"), "{:,.0f}".format),
        Column("time of training alone", training_seconds, clock),
        Column("updates late, at most", staleness, "{:g}".format),
        Column("MB of a stage, at most", memory, "{:,.0f}".format),
    ]
    return [column for column in all_columns if any(column.of(run) is not None for run in runs)]


def cell(found: Spread | None, written: Callable[[float], str]) -> str:
    """A median, and the range where it is one."""
    if found is None:
        return "-"
    median, least, most = written(found.median), written(found.least), written(found.most)
    return median if least == most else f"{median} ({least} to {most})"


def compare(runs: Sequence[Result]) -> Comparison:
    """Compares runs."""
    found, common = groups(runs)
    shown = columns(runs)
    heads = ["", "runs", *(column.head for column in shown)]
    rows = []
    for group in found:
        going = sum(not run.finished for run in group.runs)
        count = f"{len(group.runs)}{f', {going} unfinished' if going else ''}"
        rows.append([group.name, count, *(cell(spread([c.of(run) for run in group.runs]), c.written) for c in shown)])
    return Comparison(found, sentences(found), heads, rows, common)


def sentences(found: Sequence[Group]) -> list[str]:
    """Which group is ahead in test error and in speed, and what may be chance."""
    said = what_differs(found)
    said += of_errors(ranking(found, lambda run: run.final.get("test_error_percent")))
    said += [*of_rest(found), *of_staleness(found)]
    if len({value_of(run, "dataset") for group in found for run in group.runs}) > 1:
        said.append("They are of different data sets, so their errors do not compare.")
    if len({steps for group in found for run in group.runs if (steps := run.final.get("steps"))}) > 1:
        said.append("They were not trained on equally many batches: compare the curves, not the ends.")
    for name in ("images", "tokens"):
        said += of_speeds(name, ranking(found, lambda run, name=name: run.final.get(f"{name}_per_second")))
    return said


def what_differs(found: Sequence[Group]) -> list[str]:
    """The methods by their full names, and what else is not equal in all groups."""
    if not 2 <= len(found) <= MOST_NAMED:
        return []
    described, firsts = [], [group.runs[0] for group in found]
    for group, run in zip(found, firsts, strict=True):
        K = value_of(run, "K")
        more = [f"{n}={written(v)}" for n, v in group.differs.items() if n not in ("method", "K") and has(run, n)]
        with_ = ", ".join([f"K={K}{' (one device)' * (K == 1)}", *more])
        described.append(f"{value_of(run, 'method').upper()} with {with_}")
    names = dict.fromkeys(value_of(run, "method") for run in firsts)
    spelled = [f"{name.upper()}: {methods.find(name).summary.partition(' (')[0]}." for name in names]
    stages = {value_of(run, "method"): value_of(run, "K") for run in firsts if value_of(run, "K") > 1}
    free = [name.upper() for name, K in stages.items() if decoupled(methods.find(name).schedule(K))]
    gained = (
        f"With {' and '.join(free)} no stage waits for another one's pass of the same tick: all can work at the same "
        "time, each on another batch. With BP over several stages one works and the others wait."
    )
    return [f"What differs: {'; '.join(described)}.", *spelled, *([gained] if free else [])]


def of_rest(found: Sequence[Group]) -> list[str]:
    """Whether the training loss of each group had come to rest."""
    ends = []
    for group in found:
        of_group = [outcome(run) for run in group.runs if run.losses]
        ends.append((group, Counter(of_group)))
    if len(found) > MOST_NAMED:
        count = sum((counted for _, counted in ends), Counter[str]())
        return [f"The training loss {several(count)}."] if count else []
    told = [f"that of {group.short} {several(counted)}" for group, counted in ends if counted]
    return [f"The training loss: {'; '.join(told)}."] if told else []


def outcome(run: Result) -> str:
    """What a run's training loss came to."""
    config = {name: value_of(run, name) for name in FIELDS}
    last = max(run.losses[-1].batches, run.final.get("steps") or 0)
    return verdict.outcome(config, last, [point.value for point in run.losses], run.finished)


def several(counted: Mapping[str, int]) -> str:
    """What some runs came to, with how many of them where they are not alike."""
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{said} ({count(n, 'run')})" for said, n in counted.items())


def of_staleness(found: Sequence[Group]) -> list[str]:
    """Which stage of which group had the latest gradients, as measured, and why."""
    by_group = {group.short: max((run.final.get("staleness") or [0] for run in group.runs), key=max) for group in found}
    late = max((max(measured) for measured in by_group.values()), default=0)
    if not late:
        return []
    stages = [f"stage {all_.index(late) + 1} of {short}" for short, all_ in by_group.items() if max(all_) == late]
    if len(stages) > MOST_NAMED:
        return []
    updates = count(late, "update")
    return [f"Most stale: {' and '.join(stages)}, with gradients that are {updates} late, because {WHY}."]


def of_errors(ranked: Sequence[tuple[Group, Spread]]) -> list[str]:
    """The two with the lowest test error."""
    if len(ranked) < 2:
        return []
    (first, best), (second, other) = ranked[:2]
    margin = other.median - best.median
    lowest = f"Lowest test error at the end: {first.short}, {best.median:.2f}%"
    said = f"{lowest}; then {second.short}, {margin:.2f} points more."
    if best.n == 1 or other.n == 1:
        return [said, "There is one seed of at least one of them, so chance may explain the difference."]
    if other.least <= best.most:
        return [said, "Their seeds overlap, so chance may explain the difference."]
    return [said, f"Every seed of the first is below every seed of the second ({best.n} and {other.n} seeds)."]


def of_speeds(unit: str, ranked: Sequence[tuple[Group, Spread]]) -> list[str]:
    """The fastest and the slowest."""
    if len(ranked) < 2 or not ranked[0][1].median:
        return []
    (last, least), (first, most) = ranked[0], ranked[-1]
    times = most.median / least.median
    said = f"Fastest: {first.short}, {most.median:,.0f} {unit}/s, {times:.2f} times those of {last.short}."
    return [said, "Speeds compare only where the machine and what else it did were the same."]


def ranking(found: Sequence[Group], of: Callable[[Result], float | None]) -> list[tuple[Group, Spread]]:
    """The groups that have a number, the lowest median first."""
    there = [(group, numbers) for group in found if (numbers := spread([of(run) for run in group.runs])) is not None]
    return sorted(there, key=lambda pair: pair[1].median)


def text(made: Comparison) -> str:
    """The comparison for a terminal."""
    table = [made.heads, *made.rows]
    widths = [max(len(row[c]) for row in table) for c in range(len(made.heads))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in table]
    shared = f"Equal in all: {', '.join(telling(made.common))}, and defaults."
    return "\n".join([*lines, "", *made.said, "Of several seeds: the median (lowest to highest).", shared])


def telling(options: Mapping[str, Any]) -> list[str]:
    """As flags: what was trained on what and for how long, and options that are not at their defaults."""
    always = ("method", "K", "model", "dataset", "epochs", "batch_size", "learning_rate")
    asked = {n: v for n, v in options.items() if v is not None and (n in always or v != FIELDS[n].default)}
    return [" ".join(words(name, value)) for name, value in asked.items()]
