"""The curves of a run over its epochs, with the learning rates marked: curves.png, and the pictures of the page."""

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fdg_jax import methods
from fdg_jax.recipe import learning_rate_changes
from fdg_jax.report.lines import chart, curve
from fdg_jax.runs.options import FIELDS, asked_of, corrected_by
from fdg_jax.runs.run_files import unit
from fdg_jax.runs.run_length import run_length
from fdg_jax.runs.thinning import span

INK, TRAIN, TEST, FAINT = "#1f2933", "#2b6cb0", "#c05621", "#d5dbe1"
LONGEST_TITLE = 120  # characters for which there is room above the curves
FACTOR = 10.01  # between two learning rates: more, and the axis is logarithmic
FEW = 3  # fewer points make no visible line


def draw(config: dict[str, Any], events: list[dict[str, Any]], png: Path) -> None:
    """Draws training loss and test error over epochs.

    Arguments:
        config: the run's config.json.
        events: the lines of its metrics.jsonl.
        png: the PNG file to write.

    Raises:
        OSError: the file cannot be written.
    """
    import_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.family": "sans-serif", "font.size": 10, "agg.path.chunksize": 10_000}
    with rc_context(style):
        figure = Figure(figsize=(9, 6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        train = [event for event in events if event.get("train_loss") is not None]
        test = [event for event in events if event.get("test_error_percent") is not None]
        line(above, train, "train_loss", TRAIN, "training loss", marker="o" if len(train) < FEW else "")
        line(below, test, "test_error_percent", TEST, "test error (%)", marker="o" if len(test) <= 60 else "")
        if test:
            last = test[-1]
            below.annotate(
                f"{last['test_error_percent']:.2f}%", (last["epoch"], last["test_error_percent"]),
                xytext=(-4, 8), textcoords="offset points", ha="right", color=TEST, weight="bold",
            )  # fmt: skip
        mark_learning_rates((above, below), learning_rates(config), train[-1]["epoch"] if train else 0.0)
        below.set_xlabel("epoch")
        below.set_xlim(left=0)
        shown = textwrap.shorten(title(config), LONGEST_TITLE, placeholder=" ...")
        above.set_title(shown, loc="left", color=INK, pad=32, parse_math=False)  # `$` in a name is no formula
        figure.savefig(png, dpi=130, metadata={"Software": None})


def charts(config: dict[str, Any], train: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]]) -> str:
    """The pictures of the page, which have no more points than can be seen. train, test: the lines that have a training
    loss, a test error."""
    counted, rates = unit(train[-1] if train else {}), learning_rates(config)
    end = max((event["epoch"] for event in (*train, *test)), default=0.0)
    marks = [x for (x, rate), (_, before) in zip(rates[1:], rates, strict=False) if rate != before and 0 < x < end]
    shown = [  # and a style without dashes
        ("Training loss", "train_loss", train, 0),
        ("Test error (%)", "test_error_percent", test, 4),
        ("Bits per byte of the test text", "test_bits_per_byte", test, 8),
        ("Learning rate", "learning_rate", train, 12),
        (f"{counted.capitalize()}/s", f"{counted}_per_second", train, 8),
    ]
    made = []
    for name, key, events, style in shown:
        there = [event for event in events if event.get(key) is not None]
        points = [(event["epoch"], event[key]) for event in there]
        if points or key != "test_bits_per_byte":
            rate, spots = key == "learning_rate", len(points) <= 12
            points = steps(points, marks) if rate and config.get("lr_schedule", "paper") == "paper" else points
            values = [value for _, value in points] if rate else []
            spans = [] if rate else [span(event, key) for event in there]
            log = bool(values) and min(values) > 0 and max(values) > FACTOR * min(values)
            absent = "not measured" if key.endswith("_per_second") else "nothing yet"
            drawn = chart(curve(name, points, spans), name, "epochs", {name: style}, marks, absent, True, log, spots)
            made.append(f"<figure><figcaption><b>{name}</b></figcaption>{drawn}</figure>")
    notes = ["Dashed: the learning rate changes."] * bool(marks)
    notes += ["Band: the range of neighbouring lines."] * any('class="band' in each for each in made)
    under = f'<p class="soft">{" ".join(notes)}</p>' if notes else ""
    return f'<div class="charts">{"".join(made)}</div>{under}'


def steps(points: Sequence[tuple[float, float]], marks: Sequence[float]) -> list[tuple[float, float]]:
    """The corners of a curve that changes at marks only: (epoch, rate), with the ends of the curve."""
    made = list(points[:1])
    for (before, old), (x, new) in pairwise(points):
        if new != old:
            at = next((mark for mark in marks if before <= mark < x), x)
            made += [(at, old), (at, new)]
    return [*made, *points[-1:]] if len(points) > 1 else made


def import_matplotlib() -> None:
    """Imports matplotlib without a window system, also if MPLBACKEND has a value that it does not know."""
    before = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "agg"
    try:
        import matplotlib

        matplotlib.use("agg")
    finally:
        if before is None:
            del os.environ["MPLBACKEND"]
        else:
            os.environ["MPLBACKEND"] = before


def line(axes, events: list[dict[str, Any]], name: str, colour: str, label: str, marker: str = "") -> None:
    """Draws one curve. Many training losses are drawn faintly, with their running mean over them."""
    x, y = [event["epoch"] for event in events], [event[name] for event in events]
    width = len(y) // 50 if events and "learning_rate" in events[0] else 0
    low, high = zip(*(span(event, name) for event in events), strict=True) if events else ((), ())
    if low != high:
        axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
    axes.plot(x, y, color=colour, marker=marker, markersize=3.5, lw=1.6, alpha=0.3 if width > 1 else 1)
    if width > 1:
        axes.plot(x, running_means(events, name, width), color=colour, lw=1.8)
    axes.set_ylabel(label, color=colour)
    axes.grid(color=FAINT, lw=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if y:
        axes.set_ylim(bottom=0)
    else:
        axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center", color="#7b8794")


def running_means(events: list[dict[str, Any]], name: str, width: int) -> list[float]:
    """Means of up to `width` values. They start again at each new learning rate, so that a drop stays a drop."""
    means: list[float] = []
    for _, same in groupby(events, key=lambda event: event["learning_rate"]):
        values = [event[name] for event in same]
        sums = np.convolve(values, np.ones(width))[: len(values)]  # no running sum: a huge value would spoil the rest
        means += list(sums / np.minimum(np.arange(1, len(values) + 1), width))
    return means


def learning_rates(config: dict[str, Any]) -> list[tuple[float, float]]:
    """[(epoch, learning rate)]: where each rate begins, as the batches were trained."""
    if config.get("lr_schedule", "paper") != "paper":  # these change with every batch
        return [(0.0, config["learning_rate"])]
    length, M = run_length(config["train_size"] or 0, config["batch_size"], config["epochs"]), config["accumulate"]
    changes = learning_rate_changes(config["learning_rate"], length.all_epochs, config["warmup"] == "on")
    begins = {math.ceil(b / M) * M: rate for b, rate in changes}  # the first of M batches decides for all
    return [(b / max(1, length.per_epoch), rate) for b, rate in begins.items()]


def mark_learning_rates(both, rates: list[tuple[float, float]], end: float) -> None:
    """Draws a dashed line and the new value where the learning rate changes before `end`."""
    last, level = 0.0, 0
    for n, (x, rate) in enumerate(rates):
        if n and (x >= end or rate == rates[n - 1][1]):
            continue
        for axes in both if x else ():
            axes.axvline(x, color="#9aa5b1", lw=0.9, ls="--", zorder=0)
        level = 1 - level if n and x - last < 0.15 * end else 0
        both[0].annotate(
            f"{rate:g}" if n else f"learning rate {rate:g}", (x, 1), xytext=(0, 4 + 11 * level),
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8, color="#52606d",
        )  # fmt: skip
        last = x


def shrinks(config: Mapping[str, Any]) -> bool:
    """Whether the method, or a correction that takes it, has the factor β, and a stage that it is for."""
    has = "beta" in methods.find(config["method"]).answers_to or config["beta"] != FIELDS["beta"].default
    return has and config["K"] > 1


def title(config: dict[str, Any]) -> str:
    """Model, data set, method, K, beta if the method has it, and options that are no defaults."""
    own = [name for name, by in asked_of("corrections").items() if {*corrected_by(config)} & {*by}]
    has = dict.fromkeys((*methods.find(config["method"]).answers_to, "correct", *own))
    asked = [f", β={config['beta']:g}"] if shrinks(config) else []
    for name in has:
        if name != "beta" and config[name] != FIELDS[name].default:
            asked.append(f", {name.replace('_', ' ')} {config[name]}")
    return f"{config['model']} on {config['dataset']}: {config['method'].upper()} with K={config['K']}{''.join(asked)}"
