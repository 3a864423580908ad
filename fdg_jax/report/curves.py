"""Makes the charts of a run over its epochs, with marks where its learning rate changes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fdg_jax.config import run_length
from fdg_jax.pages.charts import Chart, curve
from fdg_jax.recipe import learning_rate_changes
from fdg_jax.runs.run_files import unit
from fdg_jax.runs.thinning import span

Events = Sequence[Mapping[str, Any]]


def charts(config: Mapping[str, Any], train: Events, test: Events) -> list[Chart]:
    """The charts of training loss, test error, bits per byte (for text), learning rate and speed.

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
