"""Draws a schedule as an SVG picture: a row for each stage, the versions of its weights, and an arc.

The arc goes from the stalest backward pass to the forward pass of the same batch, and shows how late the gradient is.
The SVG file needs no other file, and its colours follow the reader's light or dark background.
"""

import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from fdg_jax.explorer.timeline import Shown, stalest
from fdg_jax.pages import charts
from fdg_jax.pages.charts import LIGHT

SCALE, ROW, HEIGHT, STRIP, LEFT, TOP = 26, 66, 26, 12, 76, 44
LETTER = 5.2  # the approximate width of a letter in the legend, in pixels
COLOURS = {"F": "c0", "B": "c1"}  # by kind of operation; all other kinds have c3


def figure(shown: Sequence[Shown], title: str, K: int, words: Mapping[str, str], spread: bool = False) -> str:
    """Draws operations as an SVG document.

    Arguments:
        shown: the operations.
        title: the title above the picture.
        K: number of stages.
        words: {kind of operation: what it does} for kinds other than F and B.
        spread: whether all devices work on every stage together (data parallel), so that gaps do not mean waiting.
    """
    return charts.document(drawn(shown, title, K, words, spread), title)


def element(shown: Sequence[Shown], title: str, K: int, words: Mapping[str, str]) -> str:
    """Draws operations as `figure` does, but as an SVG element for a page that defines the palette."""
    return charts.element(drawn(shown, title, K, words, False), title, "schedule")


def drawn(shown: Sequence[Shown], title: str, K: int, words: Mapping[str, str], spread: bool) -> str:
    """Draws the picture with matplotlib. Returns its SVG document, in pixels."""
    # All rows end where the first row runs out of operations. Rows without any operations are ignored.
    end = float(min(max(op.end for op in shown if op.k == k) for k in {op.k for op in shown}))
    late = stalest([op for op in shown if op.end <= end])
    shown = [op._replace(end=min(op.end, Fraction(end))) for op in shown if op.begin < end]
    below = legend(late, words, spread)
    width, height = max(LEFT + end * SCALE, LETTER * max(map(len, below))) + 16, TOP + K * ROW + 46
    with charts.canvas(made := io.StringIO(), "", (width / 72, height / 72), font=12, layout=None) as page:
        axes = page.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        box(axes, "panel", 0, 0, width, height)
        axes.text(12, 24, title, fontsize=15, weight="bold")
        for k in range(1, K + 1):
            row(axes, [op for op in shown if op.k == k], k, end, late)
        if late:
            arc(axes, late, [op for op in shown if op.k == late.k])
        for i, line in enumerate(below):
            axes.text(12, height - 30 + 16 * i, line, fontsize=10)
    return made.getvalue()


def box(axes: Any, colour: str, x: float, y: float, width: float, height: float, word: str = "", on: str = "on"):
    """Draws a box with a word in it."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), width, height, color=LIGHT[colour], lw=0))
    if word:
        axes.text(x + width / 2, y + height / 2 + 4, word, ha="center", fontsize=10, color=LIGHT[on])


def across(time: float) -> float:
    return LEFT + time * SCALE


def row(axes: Any, shown: Sequence[Shown], k: int, end: float, late: Shown | None) -> None:
    """Draws the operations of stage k, and the versions of its weights."""
    y = TOP + (k - 1) * ROW + 14
    axes.text(12, y + 17, f"stage {k}")
    box(axes, "idle", LEFT, y, end * SCALE, HEIGHT)
    begin, version = 0.0, 0
    for op in [*shown, None]:
        if op is None or op.updates:
            until = end if op is None else float(op.end)
            used = late is not None and late.k == k and version == late.used
            wide = (until - begin) * SCALE
            if wide > 0:
                name = f"v{version}" if wide > 22 else ""
                kind = "used" if used else "odd" if version % 2 else "even"
                box(axes, kind, across(begin), y + HEIGHT + 3, wide, STRIP, name, "ink")
            begin, version = until, version + 1
    for op in shown:
        wide = float(op.end - op.begin) * SCALE
        name = f"{op.kind}{op.batch}" if wide > 16 else ""
        box(axes, COLOURS.get(op.kind, "c3"), across(float(op.begin)) + 0.5, y, max(wide - 1, 0.5), HEIGHT, name)


def arc(axes: Any, late: Shown, own: Sequence[Shown]) -> None:
    """Draws the arc from a backward pass to the forward pass of its batch, and numbers the updates in between.

    late: the backward pass. own: the operations of its stage.
    """
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    forward = next(op for op in own if (op.kind, op.batch) == ("F", late.batch))
    between = [op for op in own if op.updates and late.used <= op.version < late.version]
    y = TOP + (late.k - 1) * ROW + 13
    a, b = across(float(forward.begin + forward.end) / 2), across(float(late.begin + late.end) / 2)
    bow = Path([(b, y), (b, y - 26), (a, y - 26), (a, y)], [Path.MOVETO, *3 * [Path.CURVE4]])
    axes.add_patch(FancyArrowPatch(path=bow, arrowstyle="-|>", mutation_scale=12, lw=2, color=LIGHT["ink"]))
    for number, op in enumerate(between, 1):
        x, middle = across(float(op.end)), y + HEIGHT + STRIP - 2
        axes.plot(x, middle, "o", color=LIGHT["ink"], ms=16)
        axes.text(x, middle + 3.5, str(number), ha="center", fontsize=10, color=LIGHT["on"])


def legend(late: Shown | None, words: Mapping[str, str], spread: bool) -> list[str]:
    """The two lines below the picture that explain it."""
    grey = "all devices work on another stage" if spread else "the device waits"
    first = [f"F4, B4: forward and backward pass of batch 4. Grey: {grey}. Below: versions of the stage's weights."]
    first += [f"{kind}: {said}." for kind, said in words.items()]
    if late is None:
        return [" ".join(first), "No gradient is late: each was computed at the weights that it updates."]
    n = late.version - late.used
    second = f"{late.kind}{late.batch} at stage {late.k} updates weights of version {late.version} with a gradient for "
    second += f"version {late.used}: {n} update{'s' * (n > 1)} late. The dots count these updates."
    return [" ".join(first), second]
