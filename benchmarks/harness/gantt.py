"""Draws when operations ran: a panel for each run, a row for each stage or link, the same colours in all panels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.waiting import AWAY, HOST, UNMADE, WAITING
from fdg_jax.pages.charts import canvas, plain
from fdg_jax.schedule.simulator import Event

COLOURS = {"F": "#0072b2", "B": "#d55e00", "U": "#009e73", "S": "#cc79a7", "enter": "#f0e442", "send": "#7b8794"}
COLOURS |= {UNMADE: "#d9d9d9", AWAY: "#e41a1c", HOST: "#a6cee3"}
WORDS = {"F": "forward", "B": "backward", "U": "update", "S": "synthesizer's step", "enter": "entry, augmentation"}
WORDS |= {"send": "message on its way", **WAITING}
OTHER = "#56b4e9"

Row = tuple[int, int]  # (k, 0): stage k; (k, j): the link from k to j


def name_of(row: Row) -> str:
    return f"link {row[0]} to {row[1]}" if row[1] else f"stage k={row[0]}"


def draw(runs: Mapping[str, Sequence[Event]], path: Path, title: str) -> None:
    """Draws a PNG file.

    runs: for each panel its events, in seconds. All panels have the same rows and the same time axis.
    """
    from matplotlib.patches import Patch

    rows = sorted({(event.k, event.to) for found in runs.values() for event in found})
    end = max(event.end for found in runs.values() for event in found)
    with canvas(path, title, (14, 1.6 + len(runs) * (0.5 + 0.42 * len(rows)))) as figure:
        panels: Any = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, found) in zip(panels, runs.items(), strict=True):
            for event in found:
                bar(axes, event, rows.index((event.k, event.to)), end)
            axes.set_title(name, loc="left", fontsize=10)
            axes.set_yticks(range(len(rows)), [name_of(row) for row in rows])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_xlim(0, end * 1e3)
            plain(axes, "x", ("top", "right", "left"))
        panels[-1].set_xlabel("milliseconds")
        kinds = dict.fromkeys(event.what for found in runs.values() for event in found)
        handles = [Patch(color=COLOURS.get(kind, OTHER), label=WORDS.get(kind, kind)) for kind in kinds]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False)


def bar(axes: Any, event: Event, at: int, end: float) -> None:
    """Draws a bar, with the batch's number if there is room."""
    begin, length = event.begin * 1e3, (event.end - event.begin) * 1e3
    named = not event.to and event.what not in WAITING  # an operation
    height = 0.8 if named else 0.35
    axes.barh(at, length, left=begin, height=height, color=COLOURS.get(event.what, OTHER), edgecolor="white", lw=0.5)
    if length > end * 1e3 / 60 and named:
        label = f"{event.what if event.what != 'enter' else ''}{event.batch}"
        axes.text(begin + length / 2, at, label, ha="center", va="center", fontsize=8, color="white")
