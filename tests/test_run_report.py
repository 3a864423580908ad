"""The report of a run: one page with its curves, also of a run that has not ended."""

from unittest import mock

import numpy as np
import pytest
from stored_runs import stored_run

from fdg_jax.recipe import paper_schedule
from fdg_jax.report import curves, report_page
from fdg_jax.runs import run_files
from fdg_jax.runs.options import FIELDS, Options
from fdg_jax.runs.run_files import MetricsLog
from fdg_jax.training.setup import learning_rates


def test_a_report_is_one_page_with_its_curves_in_it_also_of_an_unfinished_run(tmp_path):
    stored_run(tmp_path, model="resnet8", K=2, beta=0.5)
    config = run_files.read_json(tmp_path / "config.json")
    run_files.write_json(
        tmp_path / "config.json",
        {**config, "devices": ["cpu:0", "cpu:1"], "note": "digits <not> CIFAR", "versions": {}},
    )
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(1, 200):
        rate = 0.1 if step < 100 else 0.01
        log.append(
            {
                "step": step,
                "epoch": step / 50,
                "train_loss": 3 / step,
                "learning_rate": rate,
                "images_per_second": 9.0,
            }
        )
    log.append({"step": 199, "epoch": 3.98, "test_loss": 0.1, "test_error_percent": 12.34})
    log.close()
    report_page.write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "12.34%" in page
    assert "FDG with K=2, β=0.5" in page
    assert "digits &lt;not&gt; CIFAR" in page
    assert "not finished" in page
    assert "src=" not in page  # nothing is fetched
    assert "<link" not in page
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_of_a_run_that_has_not_logged_anything_can_be_made(tmp_path):
    stored_run(tmp_path)
    config = run_files.read_json(tmp_path / "config.json")
    run_files.write_json(tmp_path / "config.json", {**config, "devices": ["cpu:0"], "versions": {}})
    report_page.write(tmp_path)
    assert "nothing yet" in (tmp_path / "report.html").read_text()


def told(**changed) -> dict:
    """A config as a run writes it, with 10 batches an epoch."""
    values = {name: getattr(Options(), name) for name in FIELDS}
    return {**values, "warmup": "off", "train_size": 320, "batch_size": 32, "epochs": 8, **changed}


@pytest.mark.parametrize("changed", [
    {}, {"warmup": "on"}, {"warmup": "on", "epochs": 300}, {"accumulate": 3, "warmup": "on"}, {"epochs": 1},
    {"epochs": 1, "train_size": 32, "warmup": "on"}, {"learning_rate": 0.005, "warmup": "on"}, {"train_size": 321},
])  # fmt: skip
def test_the_learning_rates_marked_are_those_of_the_schedule(changed):
    config = told(**changed)
    per_epoch = -(-config["train_size"] // 32)
    schedule = paper_schedule(config["learning_rate"], config["epochs"], per_epoch, config["warmup"] == "on")
    true = learning_rates(schedule, config["epochs"] * per_epoch, config["accumulate"])
    marked = np.zeros_like(true)
    for epoch, rate in curves.learning_rates(config):
        marked[round(epoch * per_epoch) :] = rate
    np.testing.assert_allclose(marked, true, rtol=1e-6)  # the schedule's are float32


def test_a_learning_rate_is_marked_where_it_begins_and_not_at_the_next_line_that_was_logged():
    axes = [mock.Mock(), mock.Mock()]
    curves.mark_learning_rates(axes, curves.learning_rates(told(warmup="on")), end=7.0)
    for each in axes:
        assert [call.args[0] for call in each.axvline.call_args_list] == [0.1, 4.0, 6.0]  # the fourth is at 7.3
    labels = [(call.args[0], call.args[1][0]) for call in axes[0].annotate.call_args_list]
    assert labels == [("learning rate 0.01", 0), ("0.1", 0.1), ("0.01", 4.0), ("0.001", 6.0)]


@pytest.mark.parametrize(("points", "marked"), [(1, True), (2, True), (50, False)])
def test_a_curve_of_one_point_can_be_seen(points, marked, tmp_path):
    event = {"train_loss": 1.0, "learning_rate": 0.1}
    svg = curves.draw(told(), [{"epoch": n / 10, **event} for n in range(1, points + 1)], tmp_path / "x.png")
    above = svg[svg.index('id="axes_1"') : svg.index('id="axes_2"')]
    assert (f"fill: {curves.TRAIN}; stroke" in above) is marked
