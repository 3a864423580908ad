"""Draws every chart with matplotlib: as a PNG file, or as SVG whose colours follow a page's light or dark background.

matplotlib is imported only when something is drawn, because its import takes longer than most commands.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# name -> (colour on a light background, colour on a dark one). matplotlib draws with the light colours, which are then
# replaced by names. So no light colour may occur twice.
PALETTE = {
    "ground": ("#f4f6f9", "#0f141a"), "panel": ("#ffffff", "#182029"), "ink": ("#17202b", "#e8edf3"),
    "soft": ("#4c5a6b", "#aab6c4"), "line": ("#c9d1db", "#3a4757"), "on": ("#fefefe", "#10151b"),
    "c0": ("#0b62a8", "#8cc4f2"), "c1": ("#b3430e", "#f5a673"), "c2": ("#1d6b3a", "#7fd6a0"),
    "c3": ("#6a3d9a", "#c9a7ec"), "c4": ("#8a6100", "#e8c766"), "c5": ("#a0246b", "#f29ac8"),
    "idle": ("#e4e8ee", "#263140"), "even": ("#d6dce4", "#2e3a4a"), "odd": ("#bcc6d2", "#415064"),
    "used": ("#f2c94c", "#7d5a00"),
}  # fmt: skip
LIGHT = {name: colours[0] for name, colours in PALETTE.items()}
LINES, DASHES = 6, ((), (7, 4), (2, 3), (9, 3, 2, 3))  # colours c0 to c5; lengths of dashes and gaps
MOST = 240  # the most points of a line; more would not be visible
SPOTS = 12  # a line of at most this many points has a mark at each point
FACTOR = 10.01  # largest value / smallest value: above this, an axis may be logarithmic

Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """A curve.

    name: its label in the page's key.
    style: a number that decides colour and dashes.
    middle: [(x, y), ...].
    low, high: the edges of the band around the curve, in the same form; () for none.
    """

    name: str
    style: int
    middle: Points
    low: Points = ()
    high: Points = ()


class Chart(NamedTuple):
    """Curves over one axis.

    title: what the curves show. across: what the horizontal axis counts.
    marks: positions on the horizontal axis with a dashed vertical line.
    steps: whether each value holds until the next point (a staircase). Such lines have no marks, and the vertical axis
        is logarithmic if all values are positive and differ by a factor above FACTOR.
    from_zero: whether the vertical axis begins at 0.
    """

    title: str
    across: str
    lines: Sequence[Line]
    marks: Sequence[float] = ()
    steps: bool = False
    from_zero: bool = True


def curve(name: str, style: int, points: Points, spans: Points = ()) -> list[Line]:
    """The curve of one run; [] without points. More than MOST points are reduced to means of neighbours, with their
    range as the band.

    spans: for each point, the lowest and highest of the values that were merged into it; () if none were merged.
    """
    if len(points) <= MOST:
        return [Line(name, style, points)] if points else []
    spans = spans or [(y, y) for _, y in points]
    parts = list(pairwise(round(i * len(points) / MOST) for i in range(MOST + 1)))
    x = [points[(a + b) // 2][0] for a, b in parts]
    middle = [float(np.mean([y for _, y in points[a:b]])) for a, b in parts]
    low, high = [min(s[0] for s in spans[a:b]) for a, b in parts], [max(s[1] for s in spans[a:b]) for a, b in parts]
    return [Line(name, style, *(list(zip(x, y, strict=True)) for y in (middle, low, high)))]


@contextmanager
def canvas(
    to: Path | io.StringIO, title: str, size: tuple[float, float], font: float = 10, title_font: float = 12,
    dpi: int = 120, layout: Any = "constrained",
) -> Iterator[Any]:  # fmt: skip
    """A context with a figure. At its end the figure is written, to a PNG file (Path) or as SVG to a stream. size: in
    inches. font, title_font: in points. Raises OSError if the file cannot be written."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    colours = dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), LIGHT["soft"])
    fonts = {"font.family": "sans-serif", "font.size": font, "svg.fonttype": "none", "text.parse_math": False}
    style: Any = {"text.color": LIGHT["ink"], "svg.hashsalt": "fdg_jax", **fonts, **colours}
    with rc_context(style):
        figure = Figure(figsize=size, layout=layout)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=title_font)
        yield figure
        if isinstance(to, Path):
            figure.savefig(to, dpi=dpi, metadata={"Software": None})
        else:
            figure.savefig(to, format="svg", transparent=True, metadata={"Date": None})


def plain(axes: Any, grid: Any = "both", without: Sequence[str] = ("top", "right"), width: float = 0.6) -> None:
    """Draws a faint grid behind the data, and removes the frame on the sides in `without`."""
    axes.grid(axis=grid, color=LIGHT["line"], lw=width)
    axes.set_axisbelow(True)
    axes.spines[list(without)].set_visible(False)


def plot(axes: Any, chart: Chart) -> None:
    """Draws a chart's lines and its axes."""
    for line in chart.lines:
        colour, dash = LIGHT[f"c{line.style % LINES}"], DASHES[line.style % len(DASHES)]
        if line.low:
            x, low = zip(*line.low, strict=True)
            axes.fill_between(x, low, [y for _, y in line.high], color=colour, alpha=0.22, lw=0)
        spots = "o" if len(line.middle) <= SPOTS and not chart.steps else ""
        how = "steps-post" if chart.steps else "default"
        dashes = (0, dash) if dash else "-"
        axes.plot(*zip(*line.middle, strict=True), color=colour, ls=dashes, marker=spots, ms=4, drawstyle=how)
    values = [y for line in chart.lines for part in line[2:] for _, y in part]
    if chart.steps and min(values) > 0 and max(values) > FACTOR * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("")
    else:
        axes.set_ylim(bottom=min(0, *values) if chart.from_zero else None)
    axes.yaxis.set_major_formatter(short)
    for x in chart.marks:
        axes.axvline(x, color=LIGHT["soft"], lw=0.9, ls="--")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(short)
    axes.set_xlabel(chart.across)
    plain(axes)


def short(number: float, _=None) -> str:
    """1500 -> 1.5k"""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:.6g}"


def svg(chart: Chart) -> str:
    """A chart as an SVG element for a page."""
    with canvas(stream := io.StringIO(), "", (420 / 72, 250 / 72), font=11, layout=None) as figure:
        axes = figure.add_axes((0.115, 0.17, 0.865, 0.79))
        plot(axes, chart)
    return element(stream.getvalue(), f"{chart.title} over {chart.across}", "chart")


def element(drawn: str, label: str, kind: str) -> str:
    """Turns an SVG document of matplotlib into an element of a page, with the page's colours and without unused ids.
    label: a description for screen readers. kind: the element's class."""
    head, body = drawn[drawn.index("<svg") :].split(">", 1)
    width, height = re.findall(r'="([0-9.]+)pt"', head)
    body = re.sub(r"(?s)<metadata>.*</metadata>|<style.*?</style>|<!--.*?-->", "", body)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"\d+\.\d{3,}(?=[^<]*>)", lambda number: f"{float(number[0]):.1f}", body)
    for name, colour in LIGHT.items():
        body = body.replace(colour, f"var(--{name})")
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg class="{kind}" {size} role="img" aria-label="{escape(label)}">{body}'


def document(drawn: str, title: str) -> str:
    """Turns an SVG document of matplotlib into a separate file, whose colours follow a light or dark background."""
    made = element(drawn, title, "").replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="'
                                             'http://www.w3.org/1999/xlink"', 1)  # fmt: skip
    head, body = made.split(">", 1)
    return f"{head}><title>{escape(title)}</title><style>{variables()}</style>{body}"


def variables() -> str:
    """The palette as CSS."""
    light, dark = (" ".join(f"--{name}: {each[i]};" for name, each in PALETTE.items()) for i in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def png(path: Path, title: str, charts: Sequence[Chart]) -> None:
    """Draws charts one below the other, with a common horizontal axis. Raises OSError if the file cannot be written."""
    with canvas(path, title, (9, 3 * len(charts)), title_font=11, dpi=130) as figure:
        panels = figure.subplots(len(charts), 1, sharex=True, squeeze=False)[:, 0]
        for axes, chart in zip(panels, charts, strict=True):
            if chart.lines:
                plot(axes, chart)
            else:
                axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center")
            axes.set_title(chart.title, loc="left", fontsize=10)
            axes.set_xlabel("")
        panels[-1].set_xlabel(charts[-1].across)

