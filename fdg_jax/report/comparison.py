"""Compares runs, as a table for a terminal and as a page with their curves. Runs that differ only in their seed share a
row, with the median, the lowest and the highest value. Each row is compared with the first row, seed by seed.
"""

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from fdg_jax.config import FIELDS
from fdg_jax.machine import output
from fdg_jax.options.fields import words
from fdg_jax.pages import charts, render
from fdg_jax.pages.charts import Chart, Line
from fdg_jax.report.results import Group, Point, Result, groups, has, movement, value_of
from fdg_jax.runs.progress import clock
from fdg_jax.runs.run_files import unit

NOTES = (
    "With several seeds, a cell has the median (lowest to highest). Differences are taken between runs of the same "
    "seed; shown are their mean and Student's 95% interval. With one seed, a difference may be chance.",
    "Speeds can be compared only if the machine and its other load were the same.",
)
OTHER_DATA = "The data sets differ, so the errors cannot be compared."
OTHER_LENGTH = "The runs have different numbers of batches: compare the curves, not the final numbers."
ALWAYS = ("method", "K", "model", "dataset", "epochs", "batch_size", "learning_rate")  # always among the common options


class Column(NamedTuple):
    """A column of the table. of: run -> its number, or None. written: formats a number."""

    head: str
    of: Callable[[Result], float | None]
    written: Callable[[float], str]


class Comparison(NamedTuple):
    """A comparison.

    verdict: a sentence that compares the other groups with the first group.
    heads, rows: the table, with a row for each group.
    common: the options that all runs share.
    notes: caveats.
    data: the runs' notes on their data.
    """

    verdict: str
    groups: list[Group]
    heads: list[str]
    rows: list[list[str]]
    common: dict[str, Any]
    notes: list[str]
    data: list[str]


def counted_in(runs: Sequence[Result]) -> str:
    """The unit of the runs' speed: "images" or "tokens"."""
    return unit(next((run.final for run in runs if "tokens_per_second" in run.final), {}))


def columns(runs: Sequence[Result]) -> list[Column]:
    """The columns for which at least one run has a number."""
    counted = counted_in(runs)

    def final(name: str) -> Callable[[Result], float | None]:
        return lambda run: run.final.get(name)

    def last_tenth(run: Result) -> float | None:
        moved = movement([point.value for point in run.losses])
        return moved and moved.percent

    def lowest(run: Result) -> float | None:
        return min((point.value for point in run.errors), default=run.final.get("test_error_percent"))

    def seconds(run: Result) -> float | None:
        return max((p.seconds for p in (*run.losses, *run.errors) if p.seconds is not None), default=None)

    all_columns = [
        Column("test error % at the end", final("test_error_percent"), "{:.2f}".format),
        Column("lowest", lowest, "{:.2f}".format),
        Column("bits per byte", final("test_bits_per_byte"), "{:.3f}".format),
        Column("training loss", final("train_loss"), "{:.4f}".format),
        Column("% of the loss's fall in the last tenth", last_tenth, "{:z.0f}".format),
        Column(f"{counted}/s", final(f"{counted}_per_second"), "{:,.0f}".format),
        Column("training time", seconds, clock),
        Column("largest staleness", lambda run: max(run.final.get("staleness") or [], default=None), "{:g}".format),
        Column("MB, largest stage", lambda run: max(run.memory_bytes, default=0) / 1e6 or None, "{:,.0f}".format),
    ]
    return [column for column in all_columns if any(column.of(run) is not None for run in runs)]


def cell(column: Column, runs: Sequence[Result]) -> str:
    """The text of a cell: the median of the runs' numbers, and their range if they differ."""
    numbers = [number for run in runs if (number := column.of(run)) is not None]
    if not numbers:
        return "-"
    median, least, most = (column.written(of(numbers)) for of in (statistics.median, min, max))
    return median if least == most else f"{median} ({least} to {most})"


def measure(runs: Sequence[Result]) -> tuple[str, str, int]:
    """(name in summary.json, unit, decimals) of the measure of quality: bits per byte if all runs have it, else test
    error."""
    text = all("test_bits_per_byte" in run.final for run in runs)
    return ("test_bits_per_byte", "bits per byte", 3) if text else ("test_error_percent", "points of test error", 2)


def by_seed(group: Group, name: str) -> dict[int, float]:
    """{seed: the final number with this name} for each run that has it."""
    return {value_of(run, "seed"): run.final[name] for run in group.runs if run.final.get(name) is not None}


def verdict(first: Group, others: Sequence[Group]) -> str:
    """A sentence such as "Against bp, K=1: fdg, K=2 has 1.41 times the images/s and +0.52 (+0.10 to +0.94) points of
    test error."; "" if there is nothing to compare."""
    clauses = []
    for other in others:
        runs, said = [*first.runs, *other.runs], list[str]()
        (name, what, digits), counted = measure(runs), counted_in(runs)
        speed = f"{counted}_per_second"
        speeds = [[run.final[speed] for run in group.runs if run.final.get(speed)] for group in (first, other)]
        if all(speeds):
            before, now = map(statistics.median, speeds)
            said.append(f"{now / before:.2f} times the {counted}/s")
        if found := interval([*paired(by_seed(other, name), by_seed(first, name)).values()]):
            said.append(f"{found.told(digits)} {what}{' (1 seed)' if found.n == 1 else ''}")
        clauses += [f"{other.name} has {' and '.join(said)}"] if said else []
    apart = "; " if len(clauses) < 4 else ";\n"
    return f"Against {first.name}: {apart.join(clauses)}." if clauses else ""


def compare(runs: Sequence[Result]) -> Comparison:
    """Compares runs."""
    found, common = groups(runs)
    shown, rows = columns(runs), []
    for group in found:
        going = sum(not run.finished for run in group.runs)
        count = f"{len(group.runs)}{f', {going} unfinished' if going else ''}"
        rows.append([group.name, count, *(cell(column, group.runs) for column in shown)])
    notes = [*NOTES]
    notes += [OTHER_DATA] if len({value_of(run, "dataset") for run in runs}) > 1 else []
    notes += [OTHER_LENGTH] if len({run.final["steps"] for run in runs if run.final.get("steps")}) > 1 else []
    data = [*dict.fromkeys(run.final["note"] for run in runs if run.final.get("note"))]
    said = verdict(found[0], found[1:])
    return Comparison(said, found, ["", "runs", *(column.head for column in shown)], rows, common, notes, data)


def text(made: Comparison) -> str:
    """The comparison for a terminal."""
    table = [made.heads, *made.rows]
    widths = [max(len(row[c]) for row in table) for c in range(len(made.heads))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in table]
    known = {n: v for n, v in made.common.items() if v is not None and (n in ALWAYS or v != FIELDS[n].default)}
    shared = f"Equal in all: {', '.join(' '.join(words(name, value)) for name, value in known.items())}, and defaults."
    said = [output.bold(made.verdict)] if made.verdict else []
    return "\n".join([*made.data, *lines, "", *made.notes, shared, *said])


def lines(found: Sequence[Group], of: Callable[[Result], list[Point]], x: str) -> list[Line]:
    """The curves of groups: the median of the runs, with their range as a band, up to the point that all runs of the
    group have reached.

    Arguments:
        found: the groups.
        of: the points of a run.
        x: the horizontal axis: "batches", "examples" or "seconds".
    """
    made = []
    for style, group in enumerate(found):
        curves = [[(getattr(p, x), p.value) for p in of(run) if getattr(p, x) is not None] for run in group.runs]
        curves = [curve for curve in curves if curve]
        if not curves:
            continue
        starts, ends = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
        places = [point[0] for point in curves[0] if starts <= point[0] <= ends] or [ends]
        if len(places) > charts.MOST:
            places = [places[i] for i in np.linspace(0, len(places) - 1, charts.MOST).round().astype(int)]
        values = np.array([np.interp(places, [x for x, _ in curve], [y for _, y in curve]) for curve in curves])
        parts = (np.median(values, axis=0), values.min(axis=0), values.max(axis=0))
        middle, low, high = (list(zip(places, part.tolist(), strict=True)) for part in parts)
        made.append(Line(group.name, style, middle, *((low, high) if len(curves) > 1 else ())))
    return made


def page(made: Comparison, folder: Path | None = None) -> str:
    """The comparison as HTML. folder: where the page is written, for links to the runs' reports; None for no links."""
    runs = [run for group in made.groups for run in group.runs]
    names = [name for name in made.groups[0].differs if any(has(group.runs[0], name) for group in made.groups)]
    across = {"batches": "batches", "examples": "examples", "seconds": "seconds of training"}
    if len({value_of(run, "batch_size") for run in runs}) == 1:
        del across["examples"]  # the same picture as over batches
    networks = sorted({f"{value_of(run, 'model')} on {value_of(run, 'dataset')}" for run in runs})
    common = [words(name, value) for name, value in made.common.items() if value is not None]
    curves = [
        (title, [Chart(title, named, lines(made.groups, of, x), from_zero=False) for x, named in across.items()])
        for title, of in (("Test error (%)", lambda run: run.errors), ("Training loss", lambda run: run.losses))
    ]
    return render(
        "report/comparison.html",
        title=f"{', '.join(networks)}: {len(runs)} run{'s' * (len(runs) > 1)}",
        data=made.data,
        verdict=made.verdict,
        notes=made.notes,
        heads=made.heads,
        rows=made.rows,
        dashes=charts.DASHES,
        reports=[(run.name, link) for run in runs if folder is not None and (link := report_of(run, folder))],
        curves=curves,
        differing=[name.replace("_", " ") for name in names],
        differs=[[g.name, *(g.differs[n] if has(g.runs[0], n) else None for n in names)] for g in made.groups],
        common=" ".join(word for each in common for word in each),
    )


def report_of(run: Result, folder: Path) -> str:
    """The address of a run's report relative to a folder; "" if the run has no report."""
    if run.path is None or not (run.path / "report.html").is_file():
        return ""
    return quote(Path(os.path.relpath(run.path / "report.html", folder)).as_posix())


class Interval(NamedTuple):
    """Statistics of n values: mean, standard deviation (with n - 1), and the ends of the mean's 95% confidence
    interval. For one value the deviation is None, and the interval is infinite."""

    n: int
    mean: float
    deviation: float | None
    low: float
    high: float

    def __str__(self) -> str:
        return self.told(2)

    def told(self, digits: int) -> str:
        """Text such as +0.76 (+0.39 to +1.13). digits: the number of decimals."""
        ends = "" if self.deviation is None else f" ({self.low:+.{digits}f} to {self.high:+.{digits}f})"
        return f"{self.mean:+.{digits}f}{ends}"


def interval(values: Sequence[float]) -> Interval | None:
    """The mean of values with its 95% interval by Student's t; None without values."""
    if not values:
        return None
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Interval(1, mean, None, -math.inf, math.inf)
    from scipy.special import stdtrit  # slow to import

    deviation = statistics.stdev(values)
    half = float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
    return Interval(n, mean, deviation, mean - half, mean + half)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """{seed: ours - theirs} for every seed that both have, in the order of the seeds."""
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}
