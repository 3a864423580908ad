"""The pictures of tables, PNG files in one style: curves over epochs, bars, or a table's own drawing on a canvas."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fdg_jax.pages.charts import LIGHT, canvas, plain

INK, MARK = LIGHT["ink"], "#9aa5b1"
BAR, REFERENCE = "#0072b2", "#d55e00"
NO_RESULT = "no result yet"  # in place of an empty picture, although tuning runs may be finished
TEST_ERROR = "test error (% of the test images)"


def say_empty(axes: Any, text: str = NO_RESULT, height: float = 0.5) -> None:
    axes.text(0.5, height, text, transform=axes.transAxes, ha="center")


class Curve(NamedTuple):
    """A curve over epochs. style: matplotlib's line style. marker: the mark of evaluations. line: the result line of
    the run."""

    label: str
    colour: str
    style: Any
    marker: str
    line: Mapping[str, Any]


def curves(path: Path, title: str, x_label: str, shown: Sequence[Curve], long: bool = False) -> None:
    """Draws training loss above, test error below, and one legend for both.

    long: whether the runs have hundreds of epochs. The test error is then on a logarithmic axis, and a second column
        shows loss and error over hours. Hours are a curve's epochs times the mean time of its epochs, with evaluations.
    """
    with canvas(path, title, (15 if long else 10, 7)) as figure:
        grid = figure.subplots(2, 1 + long, sharex="col", sharey="row", squeeze=False)
        for column in range(1 + long):
            above, below = grid[:, column]
            for curve in shown:
                line = curve.line
                plot_curve(above, below, curve, line["seconds"] / line["epochs"] / 3600 if column else 1.0)
            for axes, label in ((above, "training loss (mean cross-entropy, nats)"), (below, TEST_ERROR)):
                plain(axes)
                axes.set_ylabel("" if column else label)
                axes.set_xlim(left=0)
            if long and shown:
                below.set_yscale("log")
                below.yaxis.set_major_formatter("{x:g}")
                below.yaxis.set_minor_formatter("{x:g}")
            below.set_xlabel("hours, at the run's mean speed" if column else x_label)
        above, below = grid[:, 0]
        mark_learning_rates((above, below), shown)
        if shown:
            handles = below.get_legend_handles_labels()
            figure.legend(*handles, loc="outside right upper", frameon=False, handlelength=4)
        else:
            for axes in grid[0]:
                say_empty(axes)


def plot_curve(above: Any, below: Any, curve: Curve, unit: float) -> None:
    """Draws one curve. unit: the length of an epoch on the x axis."""
    look: dict[str, Any] = {"color": curve.colour, "ls": curve.style, "label": curve.label}
    training, tests = curve.line["training_curve"], curve.line["evaluations"]
    losses = [math.nan if loss is None else loss for loss in training["train_loss"]]
    above.plot([epoch * unit for epoch in training["epoch"]], losses, lw=1.3, **look)
    below.plot(
        [test["epoch"] * unit for test in tests], [test["test_error_percent"] for test in tests],
        lw=1.6, marker=curve.marker, markersize=5, markevery=max(1, len(tests) // 20), **look,
    )  # fmt: skip


def mark_learning_rates(both: Sequence[Any], shown: Sequence[Curve]) -> None:
    """Draws dotted lines where the learning rate falls, for the falls that all curves share."""
    shared = [falls(curve.line["training_curve"]) for curve in shown]
    for epoch, rate in shared[0] if shared else []:
        if all((epoch, rate) in others for others in shared):
            for axes in both:
                axes.axvline(epoch, color=MARK, lw=0.9, ls=":", zorder=0)
            both[0].annotate(
                f"learning rate {rate:g}", (epoch, 1), xytext=(3, -3), xycoords=("data", "axes fraction"),
                textcoords="offset points", fontsize=8, color="#52606d", rotation=90, va="top",
            )  # fmt: skip


def falls(training: Mapping[str, Sequence[float]]) -> list[tuple[float, float]]:
    """(epoch, new learning rate) of every fall."""
    rates, epochs = training["learning_rate"], training["epoch"]
    return [(epochs[i], rates[i]) for i in range(1, len(rates)) if rates[i] < rates[i - 1]]


def bar_label(name: str, diverged: int) -> str:
    """The label of a bar, with the number of its diverged runs."""
    return f"{name} ({diverged} diverged)" if diverged else name


def bars(
    path: Path, title: str, x_label: str, groups: Mapping[str, Mapping[str, Sequence[float]]],
    reference: tuple[str, float] | None = None, by_number: bool = False,
) -> None:  # fmt: skip
    """Draws the mean of each label's values as a horizontal bar, the best first. Several values are also drawn as
    points.

    groups: panel -> label -> values, one for each seed. A label without values has no bar.
    reference: (label, value) of a line through all panels.
    by_number: whether the height of panels follows their number of bars; else all are equally high.
    """
    numbers = [max(3, len(values)) for values in groups.values()]
    height, ratios = (1.5 + 0.27 * sum(numbers), numbers) if by_number else (7, [1] * len(numbers))
    with canvas(path, title, (10, height)) as figure:
        panels = figure.subplots(len(groups), 1, sharex=True, gridspec_kw={"height_ratios": ratios})
        for axes, (group, values) in zip(panels, groups.items(), strict=True):
            bar_panel(axes, values)
            axes.set_title(group, loc="left", fontsize=10)
            plain(axes, "x", ("top", "right", "left"))
            if by_number:
                axes.set_ylim(-0.6, max(3, len(values)) - 0.4)  # bars of one height in all panels
            if reference:
                axes.axvline(reference[1], color=REFERENCE, lw=1.2, ls="--")
        if reference:
            panels[0].annotate(
                "{}: {:.2f}".format(*reference), (reference[1], 1), xytext=(3, 4), xycoords=("data", "axes fraction"),
                textcoords="offset points", color=REFERENCE, fontsize=9,
            )  # fmt: skip
        panels[-1].set_xlabel(x_label)


def bar_panel(axes: Any, values: Mapping[str, Sequence[float]]) -> None:
    means = {label: fmean(found) if found else math.inf for label, found in values.items()}
    ranked = sorted(means, key=lambda label: means[label], reverse=True)
    axes.barh(ranked, [means[label] if values[label] else 0 for label in ranked], color=BAR, height=0.7)
    for at, label in enumerate(ranked):
        found = values[label]
        if len(found) > 1:
            axes.plot(found, [at] * len(found), "o", color=INK, ms=3.5)
        if found:
            axes.annotate(
                f"{means[label]:.2f}", (max(found), at), xytext=(5, 0), textcoords="offset points", va="center",
                fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # the line may cross it
            )  # fmt: skip
    axes.margins(x=0.08)  # for the numbers
    if not values:
        axes.set_yticks([])
        say_empty(axes)


def bars_beside(
    path: Path, title: str, x_label: str, labels: Sequence[str], series: Mapping[str, Sequence[float | None]]
) -> None:
    """Draws two series of test errors side by side. The y axis does not start at zero; the bars have numbers above
    them.

    labels: along the x axis. series: two names -> test errors in percent, one for each label, None if there is none.
    """
    with canvas(path, title, (11, 5)) as figure:
        axes, width = figure.subplots(), 0.8 / len(series)
        for nth, ((name, values), colour) in enumerate(zip(series.items(), (REFERENCE, BAR), strict=True)):
            places = [(at + (nth - (len(series) - 1) / 2) * width, value) for at, value in enumerate(values)]
            there = [(at, value) for at, value in places if value is not None]
            label = name if there else f"{name}: {NO_RESULT}"
            drawn = axes.bar([at for at, _ in there], [value for _, value in there], width, color=colour, label=label)
            axes.bar_label(drawn, fmt="%.2f", padding=2, fontsize=8)
        shown = [value for values in series.values() for value in values if value is not None]
        if shown:
            axes.set_ylim(min(shown) - 1, max(shown) + 0.5)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.set_xlabel(x_label)
        axes.set_ylabel(TEST_ERROR)
        plain(axes, "y")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
