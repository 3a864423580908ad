"""A schedule as an SVG file: a row for each stage, below it the versions of its weights, and an arc that explains both.

The arc goes from the stalest backward pass to the forward pass of the same batch. The file needs no other one, and its
colours follow the reader's light or dark background.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from html import escape

from fdg_jax.explorer.timeline import Shown, stalest

SCALE, ROW, HEIGHT, STRIP, LEFT, TOP = 26, 66, 26, 12, 76, 44
NARROWEST = 620  # pixels: room for the sentences below
# What is drawn, and its look on a light and on a dark ground.
LIGHT = {
    "text": "font: 12px system-ui, sans-serif; fill: #1b2430", ".small": "font-size: 10px",
    ".title": "font-size: 15px; font-weight: 600", ".back": "fill: #ffffff", ".idle": "fill: #e4e8ee",
    ".F": "fill: #0b62a8", ".B": "fill: #b3430e", ".other": "fill: #6a3d9a", ".in": "fill: #ffffff",
    ".even": "fill: #d6dce4", ".odd": "fill: #bcc6d2", ".used": "fill: #f2c94c",
    ".arc": "fill: none; stroke: #1b2430; stroke-width: 2", ".head": "fill: #1b2430",
}  # fmt: skip
DARK = {
    "text": "fill: #e6ebf2", ".back": "fill: #141a22", ".idle": "fill: #263140", ".F": "fill: #8cc4f2",
    ".B": "fill: #f5a673", ".other": "fill: #c9a7ec", ".in": "fill: #10151b", ".even": "fill: #2e3a4a",
    ".odd": "fill: #415064", ".used": "fill: #7d5a00", ".arc": "stroke: #e6ebf2", ".head": "fill: #e6ebf2",
}  # fmt: skip


def style(within: str = "") -> str:
    """The CSS of a figure. within: a selector; then it is for what lies within that, as a page has other pictures."""
    light, dark = (
        "\n".join(f"{within} {what} {{ {look} }}".strip() for what, look in each.items()) for each in (LIGHT, DARK)
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def figure(
    shown: Sequence[Shown], title: str, K: int, words: Mapping[str, str], within: str = "", spread: bool = False
) -> str:
    """Draws operations as an SVG document.

    Arguments:
        shown: the operations.
        title: what stands above.
        K: number of stages.
        words: what kinds do that are neither F nor B.
        within: for a page that has `style(within)` itself.
        spread: whether all devices work on every stage together (data parallel), so that a gap is no waiting.
    """
    # All rows end where the first of them has no more operations; a row without any ends nothing.
    end = float(min(max(op.end for op in shown if op.k == k) for k in {op.k for op in shown}))
    late = stalest([op for op in shown if op.end <= end])
    shown = [op._replace(end=min(op.end, Fraction(end))) for op in shown if op.begin < end]
    width, height = max(LEFT + end * SCALE + 16, NARROWEST), TOP + K * ROW + 46
    parts = [f'<rect class="back" width="{width:g}" height="{height}"/>', text(12, 24, title, "title")]
    for k in range(1, K + 1):
        parts += row([op for op in shown if op.k == k], k, end, late)
    if late:
        parts += arc(late, [op for op in shown if op.k == late.k])
    parts += [text(12, height - 30 + 16 * i, line, "small") for i, line in enumerate(legend(late, words, spread))]
    size = f'viewBox="0 0 {width:g} {height}" width="{width:g}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title>'
    look = "" if within else f"<style>{style()}</style>"
    return "\n".join([head + look, *parts, "</svg>\n"])


def text(x: float, y: float, content: str, kind: str = "", middle: bool = False) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{anchor}>{escape(content)}</text>'


def across(time: float) -> float:
    return LEFT + time * SCALE


def row(shown: Sequence[Shown], k: int, end: float, late: Shown | None) -> list[str]:
    """The operations of stage k, and the versions of its weights."""
    y = TOP + (k - 1) * ROW + 14
    below = y + HEIGHT + 3
    parts = [text(12, y + 17, f"stage {k}")]
    parts.append(f'<rect class="idle" x="{LEFT}" y="{y}" width="{end * SCALE:g}" height="{HEIGHT}"/>')
    begin, version = 0.0, 0
    for op in [*shown, None]:
        if op is None or op.updates:
            until = end if op is None else float(op.end)
            used = late is not None and late.k == k and version == late.used
            kind = "used" if used else ("odd" if version % 2 else "even")
            wide = (until - begin) * SCALE
            if wide > 0:
                parts.append(
                    f'<rect class="{kind}" x="{across(begin):g}" y="{below}" width="{wide:g}" height="{STRIP}"/>'
                )
            if wide > 22:
                parts.append(text(across((begin + until) / 2), below + 10, f"v{version}", "small", True))
            begin, version = until, version + 1
    for op in shown:
        kind = op.kind if op.kind in "FB" else "other"
        x, wide = across(float(op.begin)), float(op.end - op.begin) * SCALE
        parts.append(
            f'<rect class="{kind}" x="{x + 0.5:g}" y="{y}" width="{max(wide - 1, 0.5):g}" height="{HEIGHT}" rx="3"/>'
        )
        if wide > 16:
            parts.append(text(x + wide / 2, y + 17, f"{op.kind}{op.batch}", "in small", True))
    return parts


def arc(late: Shown, own: Sequence[Shown]) -> list[str]:
    """The arc from a backward pass to the forward pass of its batch, and the numbers of the updates in between.

    own: the operations of its stage.
    """
    forward = next(op for op in own if (op.kind, op.batch) == ("F", late.batch))
    between = [op for op in own if op.updates and late.used <= op.version < late.version]
    y = TOP + (late.k - 1) * ROW + 13
    a, b = across(float(forward.begin + forward.end) / 2), across(float(late.begin + late.end) / 2)
    return [
        f'<path class="arc" d="M{b:g} {y} C{b:g} {y - 26} {a:g} {y - 26} {a:g} {y - 4}"/>',
        f'<path class="head" d="M{a - 5:g} {y - 8} L{a + 5:g} {y - 8} L{a:g} {y} Z"/>',
        *(count(i, across(float(op.end)), y + HEIGHT + STRIP - 2) for i, op in enumerate(between, 1)),
    ]


def count(number: int, x: float, y: float) -> str:
    """A number in a dot."""
    return f'<circle class="head" cx="{x:g}" cy="{y}" r="8"/>' + text(x, y + 3.5, str(number), "in small", True)


def legend(late: Shown | None, words: Mapping[str, str], spread: bool) -> list[str]:
    """Two lines that say what is drawn."""
    grey = "all devices work on another stage" if spread else "the device waits"
    first = [f"F4, B4: forward and backward pass of batch 4. Grey: {grey}. Below: versions of the weights."]
    first += [f"{kind}: {said}." for kind, said in words.items()]
    if late is None:
        return [" ".join(first), "No gradient is late: each belongs to the weights that it updates."]
    n = late.version - late.used
    second = f"{late.kind}{late.batch} at stage {late.k} updates version {late.version} by a gradient that belongs to "
    second += f"version {late.used}: {n} update{'s' * (n > 1)} late. The numbers count them."
    return [" ".join(first), second]
