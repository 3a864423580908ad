"""Writes the page of a run, report.html, which needs no other file, and curves.png.

The page is made only from the files of the run directory. So it can be written again, even for a run that was killed,
by `python -m fdg_jax.experiments.report RUN-DIRECTORY`.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fdg_jax import methods, own_files
from fdg_jax.config import OF_START, run_length
from fdg_jax.errors import BadInput
from fdg_jax.explorer import figure, timeline
from fdg_jax.machine import output
from fdg_jax.methods.interface import Method
from fdg_jax.options.fields import spelled
from fdg_jax.options.parser import Parser
from fdg_jax.pages import render
from fdg_jax.pages.charts import Chart, curve, png
from fdg_jax.recipe import learning_rate_changes
from fdg_jax.report import results
from fdg_jax.report.results import having, movement
from fdg_jax.runs import reading, run_files
from fdg_jax.runs.progress import clock, count
from fdg_jax.runs.reading import span
from fdg_jax.runs.run_files import CONFIG, SUMMARY, Incident, unit
from fdg_jax.schedule import Schedule

Events = Sequence[Mapping[str, Any]]
MOST_STAGES, MOST_PARTS = 8, 8  # the most for a readable picture of the schedule
BEYOND = 3  # the picture ends this many forward passes after the stalest backward pass
ORIGIN = ("backend", "processor", "cpus", "usable_cores", "platform", "git_commit", "started")


def write(run: Path, config: Mapping[str, Any] | None = None) -> None:
    """Writes report.html and curves.png of a run directory, finished or not.

    Arguments:
        run: the directory.
        config: the run's configuration; None to read it from config.json.

    Raises:
        BadInput: a file of the run is damaged.
        OSError: a file cannot be written.
    """
    config = reading.with_code(run) if config is None else dict(config)
    events = reading.events(run)
    reading.check_ranges(run / CONFIG, config)
    summary = reading.summary(run) if os.path.lexists(run / SUMMARY) else {}
    train, test = having(events, "train_loss"), having(events, "test_error_percent")
    drawn = charts(config, train, test)
    png(run / "curves.png", results.title(config), drawn[:2])
    beside = run / "report.html.part"
    shown = page(config, events, summary, run_files.read_incidents(run), run_files.stalls(run))
    beside.write_text(shown, encoding="utf-8")
    beside.replace(run / "report.html")


def page(
    config: Mapping[str, Any], events: Events, summary: Mapping[str, Any],
    refused: Sequence[Incident] = (), stalls: int = 0,
) -> str:  # fmt: skip
    """The HTML of the page.

    Arguments:
        config, events, summary: the checked contents of the run's files; summary is {} for an unfinished run.
        refused: the incidents (skipped updates, returns to a checkpoint).
        stalls: the number of reported stalls.
    """
    train, test = having(events, "train_loss"), having(events, "test_error_percent")
    method, options = methods.find(config["method"]), results.of_run(config)
    schedule = method.schedule(config["K"], **method.accepted({n: config[n] for n in method.answers_to})[0])
    small = schedule.K <= MOST_STAGES and max(schedule.micro_batches, schedule.accumulate) <= MOST_PARTS
    return render(
        "report/run.html",
        title=results.title(config),
        config=config,
        summary=summary,
        step=events[-1]["step"] if events else 0,
        epoch=events[-1]["epoch"] if events else 0,
        method=method,
        schedule=schedule,
        picture=picture(method, schedule) if small and method.places is None else "",
        shrinks=results.shrinks(config),
        cards=cards(config, train, test, summary),
        charts=charts(config, train, test),
        stages=stages(config, summary),
        refused=refused,
        stalls=stalls,
        begun_anew=sum(session.get("batch") == 0 for session in config.get("resumed") or []),
        command=results.command(config),
        chosen=[(spelled(n), v, results.meaning(n)) for n, v in results.chosen(config).items()],
        options=[(spelled(name), value) for name, value in options.items()],
        origin=[*((name, config.get(name)) for name in ORIGIN), *config.get("versions", {}).items()],
    )


def picture(method: Method, schedule: Schedule) -> str:
    """The schedule as SVG, until shortly after the stalest backward pass. If no gradient is late, the first K + 2
    ticks."""
    shown = timeline.timeline(schedule, method)
    if late := timeline.stalest(shown):
        shown = [op for op in shown if op.begin < late.end + BEYOND]
    else:
        shown = timeline.timeline(schedule, method, ticks=schedule.K + 2)
    return figure.element(shown, f"{method.name}, {count(schedule.K, 'stage')}", schedule.K, method.words)


def cards(config: Mapping[str, Any], train: Events, test: Events, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The most important numbers of the run, as (label, number)."""
    newest = summary or (train[-1] if train else {})
    speed, moved = newest.get(f"{unit(newest)}_per_second"), movement([event["train_loss"] for event in train])
    shown = [("last test error", f"{test[-1]['test_error_percent']:.2f}%" if test else "–")]
    if test:
        best = min(test, key=lambda event: event["test_error_percent"])
        shown.append((f"lowest test error, at epoch {best['epoch']:g}", f"{best['test_error_percent']:.2f}%"))
        if unit(newest) == "tokens" and test[-1].get("test_loss") is not None:
            shown.append(("last test loss, nats per token", f"{test[-1]['test_loss']:.4f}"))
        if test[-1].get("test_bits_per_byte") is not None:
            shown.append(("last bits per byte of the test text", f"{test[-1]['test_bits_per_byte']:.3f}"))
    if classes := (config.get("inputs") or {}).get("classes") if not config.get("block_size") else None:
        shown.append((f"test error of guessing among {classes} classes", f"{100 - 100 / classes:.1f}%"))
    loss = summary.get("train_loss") or (train[-1]["train_loss"] if train else None)
    shown.append(("training loss", "–" if loss is None else f"{loss:.4f}"))
    if moved:
        shown.append(("training loss: first line, and mean of the last tenth", f"{moved.first:.4g} → {moved.last:.4g}"))
        if moved.percent is not None:
            shown.append(("of the loss's fall lies in the last tenth of the run", f"{moved.percent:z.0f}%"))
    shown.append((f"{unit(newest)} a second", f"{speed:,.0f}" if speed else "–"))
    if summary.get("mfu_percent") is not None:
        shown.append((f"model FLOPs utilization (MFU), of {summary['mfu_of']}", f"{summary['mfu_percent']:.1f}%"))
    if summary:
        shown.append(("total time, with compiling and evaluating", clock(summary["seconds"])))
    return shown


def stages(config: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """A table of the stages, as (heads, rows): each stage's blocks, memory, and how late its gradients were. Columns
    without any known value are left out."""
    devices, empty = config["devices"], [None] * len(config["devices"])
    facts = [*(config.get("stages") or []), *({} for _ in devices)][: len(devices)]
    memory = [of.get("memory_bytes") for of in facts]
    late, made, sizes = ([*summary.get(n, []), *empty] for n in ("staleness", "updates", "stage_parameters"))
    columns = {
        "stage": list(range(1, len(devices) + 1)),
        "first block": [of.get("first_block") for of in facts],
        "last block": [of.get("last_block") for of in facts],
        "% of the work": [of.get("share_percent") for of in facts],
        "measured in": [of.get("share_of") for of in facts],
        "parameters": [size or of.get("parameters") for size, of in zip(sizes, facts, strict=False)],
        "updates late": late,
        "updates made": made,
        "MB, predicted": [each and f"{each['total'] / 1e6:.1f}" for each in memory],
        "device": devices,
    }
    shown = {head: column for head, column in columns.items() if any(each is not None for each in column)}
    return [*shown], [[column[i] for column in shown.values()] for i in range(len(devices))]


@output.command
def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    about = "Writes a run's report.html and curves.png anew from the other files in its directory."
    parser = Parser(prog="python -m fdg_jax.experiments.report", description=about)
    parser.add_argument("run", type=Path, metavar="RUN-DIRECTORY", help="The directory of a run, finished or not.")
    parser.add_argument("--trust-code", action="store_true", help=OF_START["trust_code"].help)
    given = parser.parse_args(arguments)
    own_files.TRUSTED.set(given.trust_code)
    try:
        write(given.run)
    except OSError as error:
        raise BadInput(f"the report in {given.run} cannot be written: {error.strerror or error}.") from None
    print(given.run / "report.html")
    return 0


def charts(config: Mapping[str, Any], train: Events, test: Events) -> list[Chart]:
    """Training loss, test error, bits per byte of a text, learning rate and speed, over the epochs.

    Arguments:
        config: config.json, checked.
        train, test: the lines of metrics.jsonl that have a training loss, and those that have a test error.
    """
    counted, paper = unit(train[-1] if train else {}), config.get("lr_schedule", "paper") == "paper"
    rates = learning_rates(config) if paper else []
    end = max((event["epoch"] for event in (*train, *test)), default=0.0)
    marks = [x for (x, rate), (_, before) in zip(rates[1:], rates, strict=False) if rate != before and x < end]
    shown = [  # title, key in metrics.jsonl, lines, a style without dashes
        ("Training loss", "train_loss", train, 0),
        ("Test error (%)", "test_error_percent", test, 4),
        ("Bits per byte of the test text", "test_bits_per_byte", test, 8),
        ("Learning rate", "learning_rate", train, 0),
        (f"{counted.capitalize()}/s", f"{counted}_per_second", train, 8),
    ]
    made = []
    for title, key, events, style in shown:
        there = [event for event in events if event.get(key) is not None]
        points, rate = [(event["epoch"], event[key]) for event in there], key == "learning_rate"
        if rate and paper and points:
            passed = [each for each in rates if each[0] < end]
            points = [*passed, (end, passed[-1][1])]
        spans = () if rate else [span(event, key) for event in there]
        lines = curve(title, style, points, spans)
        if lines or key != "test_bits_per_byte":
            made.append(Chart(title, "epochs", lines, marks, steps=rate))
    return made


def learning_rates(config: Mapping[str, Any]) -> list[tuple[float, float]]:
    """The paper's schedule as [(epoch at which a rate begins, learning rate)]."""
    length, M = run_length(config["train_size"] or 0, config["batch_size"], config["epochs"]), config["accumulate"]
    changes = learning_rate_changes(config["learning_rate"], length.all_epochs, config["warmup"] == "on")
    begins = {math.ceil(b / M) * M: rate for b, rate in changes}  # each sum of M batches has its first batch's rate
    return [(b / max(1, length.per_epoch), rate) for b, rate in begins.items()]
