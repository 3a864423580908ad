"""Curves as SVG that follows the page's colours: a line for each group of runs, and a band where seeds differ."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from fdg_jax.report.results import Group, Point, Result

WIDTH, HEIGHT, LEFT, BOTTOM = 420, 250, 44, 34
MOST = 240  # points of a line: more are not seen
DASHES = ("", "7 4", "2 3", "9 3 2 3")
COLOURS = 6
SMALLEST = 1e-9  # width of the horizontal axis


class Line(NamedTuple):
    """A group's curve. middle, low, high: [(x, y), ...] of the median and of the range of its runs."""

    name: str
    middle: list[tuple[float, float]]
    low: list[tuple[float, float]]
    high: list[tuple[float, float]]


def lines(found: Sequence[Group], of: Callable[[Result], list[Point]], x: str) -> list[Line]:
    """The curves of groups.

    Arguments:
        found: the groups.
        of: the points of a run.
        x: "batches", "examples" or "seconds": what they are drawn over.
    """
    made = []
    for group in found:
        curves = [[(getattr(p, x), p.value) for p in of(run) if getattr(p, x) is not None] for run in group.runs]
        curves = [curve for curve in curves if curve]
        if not curves:
            continue
        ends = min(curve[-1][0] for curve in curves)  # all of them have come that far
        starts = max(curve[0][0] for curve in curves)
        places = thinned([point[0] for point in curves[0] if starts <= point[0] <= ends]) or [ends]
        at = [(place, sorted(value_at(curve, place) for curve in curves)) for place in places]
        middle = [(place, (v[(len(v) - 1) // 2] + v[len(v) // 2]) / 2) for place, v in at]
        low, high = [(place, v[0]) for place, v in at], [(place, v[-1]) for place, v in at]
        made.append(Line(group.name, middle, *((low, high) if len(curves) > 1 else ([], []))))
    return made


def thinned(places: Sequence[float]) -> list[float]:
    """At most MOST of them, the first and the last included."""
    if len(places) <= MOST:
        return list(places)
    return [places[round(i * (len(places) - 1) / (MOST - 1))] for i in range(MOST)]


def value_at(curve: Sequence[tuple[float, float]], x: float) -> float:
    """A curve's value, on a straight line between its points."""
    i = bisect_left(curve, (x, -math.inf))
    if i == 0 or (i < len(curve) and curve[i][0] == x):
        return curve[min(i, len(curve) - 1)][1]
    if i == len(curve):
        return curve[-1][1]
    (a, va), (b, vb) = curve[i - 1], curve[i]
    return va + (vb - va) * (x - a) / (b - a)


def ticks(low: float, high: float) -> list[float]:
    """Some round numbers from low to high."""
    step = 10 ** math.floor(math.log10((high - low) / 4 or 1))
    step *= next(n for n in (1, 2, 5, 10) if (high - low) / (n * step) <= 5)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(number: float) -> str:
    """1500 -> 1.5k"""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def curve(
    name: str, points: Sequence[tuple[float, float]], spans: Sequence[tuple[float, float]] = ()
) -> list[Line]:
    """The curve of one run; [] of no points. Of many, the means of neighbours, with their range as the band.

    spans: for each point, the lowest and highest value that it stands for; () where it is its own.
    """
    if len(points) <= MOST:
        return [Line(name, list(points), [], [])] if points else []
    bounds = [round(i * len(points) / MOST) for i in range(MOST + 1)]
    parts = [points[a:b] for a, b in pairwise(bounds)]
    places = [part[len(part) // 2][0] for part in parts]
    spans = spans or [(value, value) for _, value in points]
    middle = [statistics.fmean(value for _, value in part) for part in parts]
    low = [min(low for low, _ in spans[a:b]) for a, b in pairwise(bounds)]
    high = [max(high for _, high in spans[a:b]) for a, b in pairwise(bounds)]
    return [Line(name, *(list(zip(places, each, strict=True)) for each in (middle, low, high)))]


def chart(
    drawn: Sequence[Line],
    title: str,
    across: str,
    styles: Mapping[str, int],
    marks: Sequence[float] = (),
    absent: str = "not known of these runs",
    from_zero: bool = False,
    log: bool = False,
    spots: bool = True,
) -> str:
    """An SVG element.

    Arguments:
        drawn: the curves.
        title: what they show.
        across: what the horizontal axis counts.
        styles: {name of a group: its number}, which decides its colour and dashes.
        marks: places on the horizontal axis that get a line from top to bottom.
        absent: what is said where there is no curve.
        from_zero: whether the vertical axis begins at 0.
        log: whether the vertical axis is logarithmic; then all values are above 0.
        spots: whether the points of a curve of few points are marked.
    """
    if not drawn:
        return f'<p class="none">{escape(title)} over {escape(across)}: {escape(absent)}.</p>'
    if log:
        drawn = [Line(line.name, *([(x, math.log10(y)) for x, y in part] for part in line[1:])) for line in drawn]
    plane = plane_of(drawn, from_zero, log)
    parts = [*axes(plane, across, log)]
    for x in marks:
        at, _ = plane.place((x, plane.low))
        parts.append(f'<line class="mark" x1="{at}" x2="{at}" y1="8" y2="{HEIGHT - BOTTOM}"/>')
    for line in drawn:
        parts += strokes(line, styles[line.name], plane, spots)
    label, size = escape(f"{title} over {across}"), f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg class="chart" {size} role="img" aria-label="{label}">{"".join(parts)}</svg>'


class Plane(NamedTuple):
    """What a chart shows: 0 to right, and low to high, which are exponents of 10 on a logarithmic axis."""

    right: float
    low: float
    high: float

    def place(self, point: tuple[float, float]) -> tuple[str, str]:
        """Where a point is in the picture."""
        x, y = point[0] / self.right, (self.high - point[1]) / (self.high - self.low)
        return f"{LEFT + x * (WIDTH - LEFT - 8):.1f}", f"{8 + y * (HEIGHT - BOTTOM - 8):.1f}"


def plane_of(drawn: Sequence[Line], from_zero: bool, log: bool) -> Plane:
    """A plane with room for all curves."""
    everything = [point for line in drawn for part in line[1:] for point in part]
    right = max(max(x for x, _ in everything), SMALLEST)
    low, high = min(y for _, y in everything), max(y for _, y in everything)
    low = min(low, 0.0) if from_zero and not log else low
    margin = max(0.06 * (high - low), 1e-6 * abs(high)) or 0.5
    return Plane(right, max(0.0, low - margin) if low >= 0 and not log else low - margin, high + margin)


def axes(plane: Plane, across: str, log: bool) -> Iterator[str]:
    """The SVG of both axes: lines of the grid, their numbers and what the horizontal axis counts."""
    exponents = range(math.ceil(plane.low), math.floor(plane.high) + 1)
    for y in exponents if log else ticks(plane.low, plane.high):
        _, at = plane.place((0, y))
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 8}" y1="{at}" y2="{at}"/>'
        yield f'<text class="y" x="{LEFT - 6}" y="{float(at) + 4:.1f}">{short(10.0**y if log else y)}</text>'
    for x in ticks(0, plane.right):
        at = min(float(plane.place((x, plane.low))[0]), WIDTH - 14.0)  # all of a number is seen
        yield f'<text x="{at:g}" y="{HEIGHT - 16}">{short(x)}</text>'
    yield f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 2}">{escape(across)}</text>'


def strokes(line: Line, style: int, plane: Plane, spots: bool) -> Iterator[str]:
    """The SVG of a curve: its band, the line, and the spots of a line of few points."""
    colour, dash = f"c{style % COLOURS}", DASHES[style % len(DASHES)]

    def along(points: Iterable[tuple[float, float]]) -> str:
        return " ".join(",".join(plane.place(point)) for point in points)

    if line.low:
        yield f'<polygon class="band {colour}" points="{along([*line.low, *reversed(line.high)])}"/>'
    yield f'<polyline class="line {colour}" stroke-dasharray="{dash}" points="{along(line.middle)}"/>'
    if len(line.middle) <= 12 and spots:
        for x, y in map(plane.place, line.middle):
            yield f'<circle class="spot {colour}" cx="{x}" cy="{y}" r="3"/>'
