"""Draws training loss and test error over epochs, one curve per run, from result lines."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

INK, FAINT, MARK = "#1f2933", "#dfe4ea", "#9aa5b1"
NO_RESULT = "no result yet"  # where a picture would be empty; runs that only tune may have been made


class Curve(NamedTuple):
    """A curve.

    line: a result line. style: matplotlib's line style. marker: of the evaluations.
    """

    label: str
    colour: str
    style: Any
    marker: str
    line: Mapping[str, Any]


def draw(curves: Sequence[Curve], path: Path, title: str, x_label: str, long: bool = False) -> None:
    """Draws a PNG file: training loss above, test error below, one legend beside both.

    long: for hundreds of epochs. The test error is then on a logarithmic axis. A second column has both over hours: a
        curve's epochs times the mean time of one of its epochs, evaluations included.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.family": "sans-serif", "font.size": 10, "text.color": INK}
    with rc_context(style):
        figure = Figure(figsize=(15 if long else 10, 7), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        grid = figure.subplots(2, 1 + long, sharex="col", sharey="row", squeeze=False)
        for column in range(1 + long):
            above, below = grid[:, column]
            for curve in curves:
                line = curve.line
                plot(above, below, curve, line["seconds"] / line["epochs"] / 3600 if column else 1.0)
            furnish(above, "" if column else "training loss (mean cross-entropy, nats)")
            furnish(below, "" if column else "test error (% of the test images)")
            if long and curves:
                below.set_yscale("log")
                below.yaxis.set_major_formatter("{x:g}")
                below.yaxis.set_minor_formatter("{x:g}")
            below.set_xlabel("hours, at the run's mean speed" if column else x_label)
        above, below = grid[:, 0]
        mark_learning_rates((above, below), curves)
        if curves:
            handles = below.get_legend_handles_labels()
            figure.legend(*handles, loc="outside right upper", frameon=False, handlelength=4)
        else:
            for axes in grid[0]:
                axes.text(0.5, 0.5, NO_RESULT, transform=axes.transAxes, ha="center")
        figure.savefig(path, dpi=120, metadata={"Software": None})


def plot(above, below, curve: Curve, unit: float) -> None:
    """Draws the curves. unit: the length of an epoch on the x axis."""
    look: dict[str, Any] = {"color": curve.colour, "ls": curve.style, "label": curve.label}
    training, tests = curve.line["training_curve"], curve.line["evaluations"]
    losses = [float("nan") if loss is None else loss for loss in training["train_loss"]]
    above.plot([epoch * unit for epoch in training["epoch"]], losses, lw=1.3, **look)
    below.plot(
        [test["epoch"] * unit for test in tests], [test["test_error_percent"] for test in tests],
        lw=1.6, marker=curve.marker, markersize=5, markevery=max(1, len(tests) // 20), **look,
    )  # fmt: skip


def furnish(axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.set_xlim(left=0)
    axes.grid(color=FAINT, lw=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def mark_learning_rates(both, curves: Sequence[Curve]) -> None:
    """Draws a dotted line where the learning rate falls, for the falls that all curves share."""
    shared = [falls(curve.line["training_curve"]) for curve in curves]
    for fall in shared[0] if shared else []:
        if all(fall in others for others in shared):
            epoch, rate = fall
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
