"""A run in a terminal: a frame that is drawn over again, or plain lines where the output is a file or a pipe."""

import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fdg_jax.runs.progress import PLAIN_SECONDS
from fdg_jax.watch.seen import Seen
from fdg_jax.watch.view import HEADS, LOSS, MEANINGS, StageRow, View, number, spark, view

WIDTH = 100  # columns of a frame in a file or a pipe
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.-=+*#"
BAR = 10  # columns of a busy share
REST = 10  # times as long as a look takes is the pause after it: a long run is no reason to take its cores


class Line(NamedTuple):
    """A line of a frame. style: "", "bold", "dim" or "yellow"."""

    text: str
    style: str = ""


def frame(shown: View, width: int, unicode: bool = True) -> list[Line]:
    """A run as lines of at most so many columns. unicode: whether blocks can be drawn."""
    lines = [*wrapped(shown.title, width, "bold"), *wrapped(shown.state, width), Line("")]
    if shown.done is not None:
        lines[-1:] = [Line(bar(100 * shown.done, min(40, width - 8), unicode)), Line("")]
    for warning in shown.warnings:  # above what a low terminal cuts off
        lines += wrapped(f"! {warning}", width, "yellow")
    lines += [Line("")] * bool(shown.warnings)
    label = max(len(name) for name, _ in shown.facts)
    drawn = spark([event["train_loss"] for event in shown.train], width - label - 2, BLOCKS if unicode else ASCII)
    for name, value in shown.facts:
        lines += hanging(f"{name:{label}}  ", value, width)
        lines += [Line(f"{'':{label}}  {drawn}")] if drawn and name == LOSS else []
    lines += [Line(""), *table(shown, width, unicode), Line("")]
    for sentence in shown.said:
        lines += wrapped(sentence, width)
    return [Line(clean(line.text), line.style) for line in lines]


def table(shown: View, width: int, unicode: bool) -> list[Line]:
    """The stages. Columns of which nothing is known are left out, then those at the end that have no room."""
    rows = [cells(row, unicode) for row in shown.stages]
    kept = [c for c in range(len(HEADS) - 1) if any(row[c] for row in rows)]  # without the device
    sizes = {c: max(len(HEADS[c]), *(len(row[c]) for row in rows)) for c in kept}
    while len(kept) > 1 and sum(sizes[c] + 2 for c in kept) - 2 > width:
        kept.pop()
    lines = ["  ".join(row[c].ljust(sizes[c]) for c in kept).rstrip() for row in [HEADS, *rows]]
    made = [Line(lines[0], "dim"), *map(Line, lines[1:])]
    if any(row.busy is not None for row in shown.stages):
        made += wrapped(f"busy, {shown.busy_of}: {MEANINGS['busy']}.", width, "dim")
    return made


def cells(row: StageRow, unicode: bool) -> list[str]:
    """A stage's cells, as HEADS has them."""
    busy = "" if row.busy is None else bar(row.busy, BAR, unicode)
    return [row.k, busy, number(row.late), row.works_on, row.forward, row.backward, row.held, row.queue, row.share]


def bar(percent: float, width: int, unicode: bool) -> str:
    """A share as a bar and a number."""
    filled = round(width * max(0.0, min(100.0, percent)) / 100)
    full, empty = ("█", "░") if unicode else ("#", ".")
    return f"{full * filled}{empty * (width - filled)} {percent:3.0f}%"


def wrapped(text: str, width: int, style: str = "") -> list[Line]:
    """A text in lines."""
    return [Line(each, style) for each in textwrap.wrap(text, width, break_on_hyphens=False)] or [Line("", style)]


def hanging(label: str, text: str, width: int) -> list[Line]:
    """A text behind a label, its further lines indented to where it begins."""
    found = textwrap.wrap(text, max(10, width - len(label)), break_on_hyphens=False) or [""]
    return [Line(label + found[0]), *(Line(" " * len(label) + each) for each in found[1:])]


def clean(text: str) -> str:
    """A text without what a terminal would obey: control characters and the like become question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def can_draw() -> bool:
    """Whether stdout can show blocks."""
    try:
        (BLOCKS + "░").encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def text(shown: View, width: int = WIDTH, unicode: bool = True) -> str:
    """A frame as text."""
    return "\n".join(line.text for line in frame(shown, width, unicode))


class Plain:
    """A run in a file or a pipe: a frame at first and at the end, a line now and then, warnings once each."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.said: float | None = None

    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, *_: Any) -> None: ...

    def show(self, seen: Seen) -> None:
        """Shows what is new."""
        shown = view(seen)
        new = [warning for warning in shown.warnings if warning not in self.told]
        self.told.update(new)
        if self.said is None or shown.ended:
            print(text(shown, unicode=can_draw()), flush=True)
            self.said = time.monotonic()
            return
        for warning in new:
            print(clean(f"WARNING: {warning}"), flush=True)
        if time.monotonic() - self.said >= PLAIN_SECONDS:
            self.said = time.monotonic()
            print(clean(line(shown)), flush=True)


def line(shown: View) -> str:
    """A run in one line."""
    busy = [f"{row.busy:.0f}%" for row in shown.stages if row.busy is not None]
    words = [f"{name} {value}" for name, value in shown.facts]
    return "  ".join([shown.state, *words, *([f"busy {' '.join(busy)}"] if busy else [])])


class Drawn:
    """A run in a terminal. The last frame stays."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(highlight=False)
        self.unicode = can_draw()  # asked now, as rich takes the place of stdout while it draws
        self.live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> "Drawn":
        self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.live.stop()

    def show(self, seen: Seen) -> None:
        """Draws what there is now."""
        from rich.text import Text

        shown = view(seen)
        whole = Text(no_wrap=True, overflow="crop")
        for each in frame(shown, min(self.console.width, 120) - 1, self.unicode):
            whole.append(each.text + "\n", style=each.style)
        self.live.update(whole, refresh=True)

    def say(self, text: str) -> None:
        """Prints a line that stays, above the frame."""
        self.console.print(clean(text), markup=False, highlight=False, soft_wrap=True)


def follow(look: Callable[[], Seen], show: Callable[[Seen], None], seconds: float) -> Seen:
    """Shows a run until it ends, with so many seconds between two looks. Returns what was seen last."""
    while True:
        began = time.process_time()
        seen = look()
        show(seen)
        if seen.ended:
            return seen
        time.sleep(max(seconds, REST * (time.process_time() - began)))
